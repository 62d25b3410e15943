#include "engine/c_api.h" /* first and alone: the header needs nothing before it */
