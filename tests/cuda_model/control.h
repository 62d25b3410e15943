// What tests say to the model of the CUDA runtime, found by dlsym (null where the real runtime is).
//
// Threads: any. Counts are of the whole process.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

extern "C" {
// The nth call of `function` from now on fails, "*" being any; sticky: all is lost by it. Null takes that back.
void cudaModelFail(const char* function, long nth, cudaError_t error, int sticky);
// The nth kernel from now on loses all by the error, while it runs.
void cudaModelFailKernel(long nth, cudaError_t error);
// The function whose planted failure came, or null.
const char* cudaModelFailed();
long cudaModelCalls(const char* function);  // "*": of all
long cudaModelViolations();
void cudaModelViolation(const char* function, const char* what);  // another model's
const char* cudaModelLastViolation();
// Calls of this thread come through that instance of the runtime: 0, or 1, another binary's static one.
void cudaModelUseRuntime(int instance);
int cudaModelTakeErrorOfRuntime1();
long cudaModelBlockedLaunches();                         // that found their stream's queue full
int cudaModelMayAccess(const void* memory, int device);  // 0: it would fault there
unsigned cudaModelEventFlags();                          // of all events made since this was asked
void cudaModelWaitIdle(int device);
// The edge to the stream's next node in its capture is programmatic, as behind a launch with such an event.
void cudaModelProgrammaticEdge(cudaStream_t stream);
void cudaModelTakeMemory(size_t bytes);  // of a device, by another process at each cudaGraphInstantiate
// Called when a call of the runtime begins and ends, outside of the model's lock; null: nothing is. Gives back what was.
typedef void (*cudaModelHook)(const char* function, bool begins);
cudaModelHook cudaModelOnCall(cudaModelHook hook);
unsigned cudaModelContexts();  // a bit for each device that has been given a context, since they were forgotten
void cudaModelForgetContexts();
void cudaModelForgive();        // violations were expected
int cudaModelLiveObjects();     // streams, events, pools, graphs, executables, allocations
void cudaModelReviveDevices();  // what was lost is forgotten, and devices work again
}

// A function of the model, or null.
#define CUDA_MODEL(name) reinterpret_cast<decltype(&::name)>(dlsym(RTLD_DEFAULT, #name))
