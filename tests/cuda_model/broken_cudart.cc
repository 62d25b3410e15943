// A library that is no CUDA runtime, although it has one of its functions.
extern "C" int cudaGetDeviceCount(int* count) { return *count = 0; }
