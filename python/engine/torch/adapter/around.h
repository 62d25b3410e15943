// What decides about a call apart from its arguments, where nothing unusual is set. numerics.py says what that is, and asks for the rest;
// there each question takes a call from Python.
//
// Threads:   any, with the GIL; the settings are those of the calling thread.
#pragma once

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <Python.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>

namespace engine_torch {

// around() -> bytes, equal where the settings are, those of numerics._around in its order; None where something may see each call of
// torch, or a default device is set.
inline PyObject* Around(PyObject*, PyObject*) {
  if (torch::autograd::AnomalyMode::is_enabled() || c10::InferenceMode::is_enabled() ||
      c10::impl::TorchDispatchModeTLS::stack_len() > 0 || at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
      !at::SavedTensorDefaultHooks::get_tls_state().stack.empty() ||
      c10::impl::tls_is_dispatch_key_included(
          c10::DispatchKey::FuncTorchDynamicLayerFrontMode))  // a transform of torch.func
    Py_RETURN_NONE;
  const auto& of = at::globalContext();
  const auto precision = [&](at::Float32Op op) {
    return static_cast<char>(of.float32Precision(at::Float32Backend::MKLDNN, op));
  };
  const char settings[] = {static_cast<char>(c10::GradMode::is_enabled()),
                           static_cast<char>(at::autocast::is_autocast_enabled(at::kCPU)),
                           static_cast<char>(at::autocast::get_autocast_dtype(at::kCPU)),
                           precision(at::Float32Op::MATMUL),
                           precision(at::Float32Op::CONV),
                           precision(at::Float32Op::RNN),
                           static_cast<char>(c10::get_default_dtype_as_scalartype()),
                           static_cast<char>(of.deterministicAlgorithms()),
                           static_cast<char>(of.userEnabledMkldnn()),
                           static_cast<char>(of.userEnabledFlashSDP()),
                           static_cast<char>(of.userEnabledMathSDP()),
                           static_cast<char>(of.userEnabledMemEfficientSDP()),
                           static_cast<char>(of.userEnabledCuDNNSDP())};
  return PyBytes_FromStringAndSize(settings, sizeof(settings));
}

}  // namespace engine_torch
