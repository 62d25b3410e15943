// What tests say to the model of NCCL, found by dlsym (null where the real library is).
//
// Threads: any. A fault strikes once. Violations are counted with those of the CUDA model (control.h).
#pragma once

#include <dlfcn.h>
#include <nccl.h>

extern "C" {
// The nth call of `function` from now on gives `error`, and does nothing.
void ncclModelFail(const char* function, long nth, ncclResult_t error);
// What `rank` of any communicator launches as its nth group from now on never ends, and every rank finds `error` out.
void ncclModelFailAsync(int rank, long nth, ncclResult_t error);
// From now on an abort returns only when all streams of the rank's device are empty, as where it frees memory (nccl 549, 829).
void ncclModelAbortWaits(bool waits);
long ncclModelCalls(const char* function);
int ncclModelLiveCommunicators();
}

// A function of the model, or null.
#define NCCL_MODEL(name) reinterpret_cast<decltype(&::name)>(dlsym(RTLD_DEFAULT, #name))
