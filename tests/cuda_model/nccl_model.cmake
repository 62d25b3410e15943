# nccl_test: communicators on NCCL, over the models of CUDA and NCCL. The engine's own objects are linked with comm/nccl.cc,
# whether or not NCCL was found, and against no other library of either.
find_package(CUDAToolkit REQUIRED)  # found before; for its variables
include(${CMAKE_CURRENT_LIST_DIR}/cuda_model.cmake)
if(NOT TARGET cuda_model)
  add_cuda_model()
endif()
set(header ${CMAKE_CURRENT_LIST_DIR}/nccl_header)
if(NCCL_INCLUDE_DIR)  # cmake/FindNCCL.cmake
  set(header ${NCCL_INCLUDE_DIR})
else()
  message(STATUS "tests: the model of NCCL uses a header of its own. NCCL_ROOT names a folder with include/ and lib/ of the real one, "
                 "as the wheel nvidia-nccl-cu13 has them under nvidia/nccl")
endif()

add_library(nccl_model SHARED ${CMAKE_CURRENT_LIST_DIR}/nccl.cc ${CMAKE_CURRENT_LIST_DIR}/nccl_clique.cc)
target_include_directories(nccl_model SYSTEM PRIVATE ${header} ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(nccl_model PRIVATE cuda_model)
target_compile_options(nccl_model PRIVATE -O1 -g1)
set_target_properties(nccl_model PROPERTIES OUTPUT_NAME nccl SOVERSION 2
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cuda_model)

add_executable(nccl_test
  ${CMAKE_CURRENT_LIST_DIR}/nccl_test.cc ${PROJECT_SOURCE_DIR}/src/engine/comm/nccl.cc
  $<FILTER:$<TARGET_OBJECTS:engine>,EXCLUDE,/comm/n> $<TARGET_OBJECTS:engine_policies> $<TARGET_OBJECTS:device_test_objects>)
target_include_directories(nccl_test PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src/engine
                           ${PROJECT_SOURCE_DIR}/tests)
target_include_directories(nccl_test SYSTEM PRIVATE ${header} ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(nccl_test PRIVATE nccl_model cuda_model TBB::tbb Threads::Threads GTest::gtest ${CMAKE_DL_LIBS})
add_test(NAME nccl_on_model COMMAND nccl_test --gtest_filter=*Nccl*)
set_tests_properties(nccl_on_model PROPERTIES ENVIRONMENT CUDA_MODEL_DEVICES=4 TIMEOUT 120
                     FAIL_REGULAR_EXPRESSION "SKIPPED|0 tests ran")
