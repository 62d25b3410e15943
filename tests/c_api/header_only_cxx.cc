#include "engine/c_api.h"  // first and alone: the header is C++ as well
