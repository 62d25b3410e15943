# cuda_model_test(NAME PROGRAM FILTER): the tests of a program that FILTER names, with the model of the CUDA runtime in place of the
# real one. For programs of nvcc's.
if(NOT TARGET cuda_model)
  set(sources capture.cc copies.cc device.cc events.cc graphs.cc kernels.cc memory.cc model.cc streams.cc twins.cc)
  list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/cudart.map.in ${PROJECT_BINARY_DIR}/cuda_model/cudart.map @ONLY)
  add_library(cuda_model SHARED ${sources})
  target_include_directories(cuda_model SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(cuda_model PRIVATE Threads::Threads)
  target_compile_options(cuda_model PRIVATE -O1 -g1)
  # A C++ library of its own: what the program replaces (operator new, to count) is the program's.
  target_link_options(cuda_model PRIVATE -static-libstdc++ -static-libgcc
                      -Wl,--version-script=${PROJECT_BINARY_DIR}/cuda_model/cudart.map)
  set_target_properties(cuda_model PROPERTIES OUTPUT_NAME cudart SOVERSION ${CUDAToolkit_VERSION_MAJOR}
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cuda_model)
endif()

function(cuda_model_test name program filter)
  add_dependencies(${program} cuda_model)
  add_test(NAME ${name} COMMAND ${program} --gtest_filter=${filter})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT LD_PRELOAD=$<TARGET_FILE:cuda_model> TIMEOUT 120
                       FAIL_REGULAR_EXPRESSION "SKIPPED|0 tests ran")
endfunction()
