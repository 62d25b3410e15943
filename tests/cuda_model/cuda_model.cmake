# Tests that need nvcc, and the model of the CUDA runtime that they run on without a GPU. See README.md.

# Sets CUDA_TESTS, and enables the language.
include(CheckLanguage)
macro(cuda_tests)
  set(CUDA_TESTS OFF)
  if(TARGET CUDA::cudart AND NOT ENGINE_CUDA STREQUAL "OFF" AND NOT ENGINE_SANITIZE)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      set(CUDA_TESTS ON)
      if(NOT CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 90)
      endif()
      enable_language(CUDA)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know that nvcc has it
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
  endif()
  get_property(said GLOBAL PROPERTY cuda_tests_said)
  if(NOT CUDA_TESTS AND NOT said)
    set_property(GLOBAL PROPERTY cuda_tests_said ON)
    engine_left_out("tests on CUDA and on the model of its runtime" "they need the toolkit with nvcc, and no sanitizer")
  endif()
endmacro()

# An object library of kernels. The host side's warnings are the project's, but for what nvcc's own output breaks.
function(cuda_kernels name source)
  add_library(${name} OBJECT ${source})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  set_target_properties(${name} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                        CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
  set_property(TARGET ${name} PROPERTY COMPILE_OPTIONS "-Xcompiler=-Wall,-Wextra,-Wshadow")
  if(ENGINE_WERROR)
    set_property(TARGET ${name} APPEND PROPERTY COMPILE_OPTIONS "--Werror=all-warnings;-Xcompiler=-Werror")
  endif()
endfunction()

function(add_cuda_model)
  find_package(CUDAToolkit REQUIRED)  # found before; for its variables
  set(here ${PROJECT_SOURCE_DIR}/tests/cuda_model)
  set(sources capture.cc copies.cc device.cc driver.cc events.cc graphs.cc kernels.cc memory.cc model.cc streams.cc twins.cc)
  list(TRANSFORM sources PREPEND ${here}/)
  configure_file(${here}/cudart.map.in ${PROJECT_BINARY_DIR}/cuda_model/cudart.map @ONLY)
  add_library(cuda_model SHARED ${sources})
  target_include_directories(cuda_model SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(cuda_model PRIVATE Threads::Threads)
  target_compile_options(cuda_model PRIVATE -O1 -g1)
  # A C++ library of its own: what the program replaces (operator new, to count) is the program's.
  target_link_options(cuda_model PRIVATE -static-libstdc++ -static-libgcc
                      -Wl,--version-script=${PROJECT_BINARY_DIR}/cuda_model/cudart.map)
  set_target_properties(cuda_model PROPERTIES OUTPUT_NAME cudart SOVERSION ${CUDAToolkit_VERSION_MAJOR}
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cuda_model
                        UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)  # most of a file's time is its headers'
endfunction()

# With the header that the engine uses.
function(add_nccl_model)
  if(TARGET nccl_model)
    return()
  endif()
  if(NOT TARGET cuda_model)
    add_cuda_model()
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(here ${PROJECT_SOURCE_DIR}/tests/cuda_model)
  set(header ${PROJECT_SOURCE_DIR}/src/engine/comm/nccl/header)
  if(NCCL_INCLUDE_DIR)
    set(header ${NCCL_INCLUDE_DIR})
  endif()
  add_library(nccl_model SHARED ${here}/nccl.cc ${here}/nccl_clique.cc)
  target_include_directories(nccl_model SYSTEM PUBLIC ${header} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(nccl_model PRIVATE cuda_model)
  target_compile_options(nccl_model PRIVATE -O1 -g1)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cuda_model/nccl.map CONTENT "libnccl.so.2 { global: nccl*; local: *; };\n")
  target_link_options(nccl_model PRIVATE -static-libstdc++ -static-libgcc  # as above
                      -Wl,--version-script=${PROJECT_BINARY_DIR}/cuda_model/nccl.map)
  set_target_properties(nccl_model PROPERTIES OUTPUT_NAME nccl SOVERSION 2
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cuda_model)
endfunction()

# Where the engine was built with CUPTI.
function(add_cupti_model)
  find_package(CUDAToolkit REQUIRED)
  add_library(cupti_model SHARED ${PROJECT_SOURCE_DIR}/tests/cuda_model/cupti.cc)
  target_include_directories(cupti_model SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${ENGINE_CUPTI_INCLUDE})
  target_link_libraries(cupti_model PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
  target_compile_options(cupti_model PRIVATE -O1 -g1)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cuda_model/cupti.map CONTENT "CUPTI { global: cupti*; local: *; };\n")
  target_link_options(cupti_model PRIVATE -static-libstdc++ -static-libgcc  # as above
                      -Wl,--version-script=${PROJECT_BINARY_DIR}/cuda_model/cupti.map)
  set_target_properties(cupti_model PROPERTIES OUTPUT_NAME cupti SOVERSION ${CUDAToolkit_VERSION_MAJOR}
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cuda_model)
endfunction()

# The tests of a program that `filter` names, in one process, with the models in place of the runtime, of CUPTI and of NCCL. More
# arguments: variables of the environment.
function(cuda_model_test name program filter)
  if(NOT TARGET cuda_model)
    add_cuda_model()
  endif()
  add_dependencies(${program} cuda_model)
  set(models $<TARGET_FILE:cuda_model>)
  if(ENGINE_CUPTI_INCLUDE)
    if(NOT TARGET cupti_model)
      add_cupti_model()
    endif()
    add_dependencies(${program} cupti_model)
    string(APPEND models ":$<TARGET_FILE:cupti_model>")
  endif()
  if(TARGET engine_nccl)
    add_nccl_model()
    add_dependencies(${program} nccl_model)
    string(APPEND models ":$<TARGET_FILE:nccl_model>")
  endif()
  add_test(NAME ${name} COMMAND ${program} --gtest_filter=${filter})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "LD_PRELOAD=${models};CUDA_MODEL_DEVICES=2;${ARGN}"
                       TIMEOUT 120
                       FAIL_REGULAR_EXPRESSION "SKIPPED| 0 tests from")
endfunction()
