// Signatures: what `inspect.signature` finds for the functions of the extension. nanobind keeps their signatures as text, where
// Python does not look; engine/signatures.py reads it.
//
// Threads: called once, at import.
#include "bindings.h"
#include "failure.h"

namespace nb = nanobind;

namespace engine_python {

void BindSignatures(nb::module_& m) {
  m.def(
      "_set_signature_property",
      [](nb::handle type, nb::handle property) {
        // The types of functions are immutable for Python code. The attribute is new, so nobody has looked it up.
        auto* const cls = reinterpret_cast<PyTypeObject*>(type.ptr());
#if PY_VERSION_HEX >= 0x030C0000
        nb::object fields = nb::steal(PyType_GetDict(cls));
#else
        nb::object fields = nb::borrow(cls->tp_dict);
#endif
        if (PyDict_SetItemString(fields.ptr(), "__signature__", property.ptr()) < 0) throw nb::python_error();
        PyType_Modified(cls);
      },
      nb::arg("type"), nb::arg("property"));
}

}  // namespace engine_python
