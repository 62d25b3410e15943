// Bindings: what each file of this folder adds to the module.
#pragma once

#include <nanobind/nanobind.h>

#include "handle.h"

namespace engine_python {

void BindVar(nanobind::module_& m);
void BindAside(nanobind::module_& m);
void BindAwait(nanobind::module_& m);
nanobind::class_<PyEngine> BindEngine(nanobind::module_& m);
void BindBulk(nanobind::module_& m, nanobind::class_<PyEngine>& cls);
void BindExtent(nanobind::module_& m);
void BindMemory(nanobind::module_& m);
void BindValue(nanobind::module_& m);
void BindOp(nanobind::module_& m);
void BindGraph(nanobind::module_& m);
void BindReplay(nanobind::module_& m);
void BindComm(nanobind::module_& m);
void BindSmart(nanobind::module_& m);
void BindStage(nanobind::module_& m);
void BindNative(nanobind::module_& m);
void BindMxnet(nanobind::module_& m);
void BindExit(nanobind::module_& m);
void BindSignatures(nanobind::module_& m);

}  // namespace engine_python
