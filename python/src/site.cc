#include "site.h"

#include <unordered_map>

#include "failure.h"
#include "gil.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

struct File {
  engine::Name name;
  bool ours;
};

std::string& PackageFolder() {
  static auto* folder = new std::string;
  return *folder;
}

const char* Utf8(PyObject* text) {
  const char* utf8 = PyUnicode_AsUTF8(text);
  if (!utf8) ForgetError();  // lone surrogates, as in undecodable file names
  return utf8;
}

// File names by the address of their str, which the code objects of one file share. The cache owns a reference, so that
// an address is not reused. Programs that compile many "<string>"s start a new cache now and then.
const File& FileOf(PyObject* filename) {
  constexpr size_t kMaxFiles = 4096;
  static auto* cache = new std::unordered_map<PyObject*, File>;
  if (auto found = cache->find(filename); found != cache->end()) return found->second;
  if (cache->size() >= kMaxFiles) {
    for (auto& entry : *cache) Py_DECREF(entry.first);
    cache->clear();
  }
  const char* utf8 = Utf8(filename);
  const std::string text = utf8 ? utf8 : "?";
  const bool ours = !PackageFolder().empty() && text.compare(0, PackageFolder().size(), PackageFolder()) == 0;
  Py_INCREF(filename);
  return cache->emplace(filename, File{engine::Name::Intern(text), ours}).first->second;
}

}  // namespace

void SetPackageFolder(std::string folder) { PackageFolder() = std::move(folder); }

namespace {

// Lines by code object and instruction, because finding a line takes longer than a push. The code objects are kept, so that
// an address is not reused.
uint32_t LineOf(PyFrameObject* frame, PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030B0000
  struct Entry {
    PyCodeObject* code = nullptr;
    int at = 0;
    uint32_t line = 0;
  };
  static Entry entries[256];
  const int at = PyFrame_GetLasti(frame);
  Entry& entry = entries[(reinterpret_cast<uintptr_t>(code) / 64 + static_cast<uintptr_t>(at) / 2) % 256];
  if (entry.code == code && entry.at == at) return entry.line;
#endif
  const int found = PyFrame_GetLineNumber(frame);
  const uint32_t line = found > 0 ? static_cast<uint32_t>(found) : 0;
#if PY_VERSION_HEX >= 0x030B0000
  PyCodeObject* const before = entry.code;
  Py_INCREF(code);
  entry = {code, at, line};
  Py_XDECREF(before);
#endif
  return line;
}

}  // namespace

engine::Site CallerSite() {
  nb::object frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame.is_valid()) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const File& file = FileOf(reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
    if (!file.ours) {
      return engine::Site::At(file.name, LineOf(raw, reinterpret_cast<PyCodeObject*>(code.ptr())));
    }
    frame = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return {};
}

std::string Where::Text() const {
  std::string text = verb;
  if (*name.c_str()) text += std::string(" of '") + name.c_str() + "'";
  if (*site.file) text += std::string(" at ") + site.file + ":" + std::to_string(site.line);
  return text + ": ";
}

std::string Text(nb::handle object, const std::string& what) {
  if (!PyUnicode_Check(object.ptr())) {
    RaiseTypeError(what + " is " + ATypeOf(object.ptr()) + "; a str is expected");
  }
  Py_ssize_t size;
  const char* utf8 = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (!utf8) throw nb::python_error();
  return {utf8, static_cast<size_t>(size)};
}

engine::Name KeptName(std::string_view text) {
  constexpr size_t kMaxNames = 1 << 14;
  static auto* names = new std::unordered_map<std::string, engine::Name>;
  std::string key(text);
  if (auto found = names->find(key); found != names->end()) return found->second;
  if (names->size() >= kMaxNames) return "one of many names";
  const engine::Name name = engine::Name::Intern(text);
  names->emplace(std::move(key), name);
  return name;
}

engine::Name OpName(nb::handle given, nb::handle fn, const Where& at) {
  if (!given.is_none()) return KeptName(Text(given, at.Text() + "name"));
  nb::object name = nb::steal(PyObject_GetAttrString(fn.ptr(), "__name__"));
  if (name.is_valid() && PyUnicode_Check(name.ptr())) {
    if (const char* utf8 = Utf8(name.ptr())) return KeptName(utf8);
  }
  ForgetError();  // callables need not have a name
  return KeptName(Py_TYPE(fn.ptr())->tp_name);
}

}  // namespace engine_python
