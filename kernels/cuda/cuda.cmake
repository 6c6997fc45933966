# The CUDA backend as two plug-in libraries of the same sources: llmlua-cuda by nvcc, where there is a
# toolkit, and llmlua-cuda-emulated by the host's C++ compiler, for tests on machines without a GPU. The
# program is built and runs without either, and without a C++ compiler.
file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS kernels/cuda/*.c)
file(GLOB CUDA_KERNELS CONFIGURE_DEPENDS kernels/cuda/*.cu)
file(GLOB EMULATION_SOURCES CONFIGURE_DEPENDS kernels/cuda/emulation/*.c kernels/cuda/emulation/*.cc
     kernels/cuda/emulation/*.cpp)
file(GLOB CUDA_TESTS CONFIGURE_DEPENDS spec/c/cuda/test_*.c spec/c/cuda/test_*.cu)

# A plug-in shows one symbol; what it uses of the engine is its own copy.
function(llmlua_plugin target)
  target_link_libraries(${target} PRIVATE engine dl)
  if(NOT LLMLUA_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
  target_link_options(${target} PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/kernels/cuda/plugin.map)
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/plugin.map)
endfunction()

# All tests of kernels in one program, for scripts/gpu-check.sh: `TARGET NAME` runs one, without a name
# it lists them.
function(llmlua_kernel_tests target library)
  set(tests "")
  foreach(source IN LISTS CUDA_TESTS)
    get_filename_component(name ${source} NAME_WE)
    if(NOT name MATCHES "^test_cuda_(.*)")
      continue()
    endif()
    string(APPEND tests " X(${CMAKE_MATCH_1})")
    add_library(${target}-${CMAKE_MATCH_1} OBJECT EXCLUDE_FROM_ALL ${source})
    target_compile_definitions(${target}-${CMAKE_MATCH_1} PRIVATE main=kernels_${CMAKE_MATCH_1})
    target_compile_options(${target}-${CMAKE_MATCH_1} PRIVATE -Wno-missing-prototypes)
    target_include_directories(${target}-${CMAKE_MATCH_1} PRIVATE core spec/c)
    target_link_libraries(${target}-${CMAKE_MATCH_1} PRIVATE ${library} engine)
    list(APPEND objects $<TARGET_OBJECTS:${target}-${CMAKE_MATCH_1}>)
  endforeach()
  add_executable(${target} EXCLUDE_FROM_ALL spec/c/cuda/kernel_tests.c ${objects})
  target_compile_definitions(${target} PRIVATE "KERNEL_TESTS=${tests}")
  target_link_libraries(${target} PRIVATE ${library} engine ${PCRE2_STATIC} ${UTF8PROC_STATIC} ${XXHASH_STATIC})
endfunction()

# What specs load that is none of this version.
add_library(other-plugin MODULE spec/c/cuda/other_plugin.c)
target_include_directories(other-plugin PRIVATE kernels)

# ---- emulated ----

include(CheckLanguage)
check_language(CXX)
if(CMAKE_CXX_COMPILER AND NOT LLMLUA_FUZZ)
  enable_language(CXX)
  set(CMAKE_CXX_STANDARD 17)
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
  if(CMAKE_C_COMPILER_LAUNCHER AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
  endif()
  foreach(source IN LISTS CUDA_KERNELS CUDA_TESTS)
    if(source MATCHES "\\.cu$")
      set_source_files_properties(${source} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
    endif()
  endforeach()
  add_library(cuda-emulated OBJECT ${CUDA_SOURCES} ${CUDA_KERNELS} ${EMULATION_SOURCES})
  target_compile_definitions(cuda-emulated PUBLIC LLMLUA_EMULATION _GNU_SOURCE)
  target_include_directories(cuda-emulated PUBLIC kernels kernels/cuda kernels/cuda/emulation/include)
  target_link_libraries(cuda-emulated PUBLIC Threads::Threads)
  add_library(llmlua-cuda-emulated MODULE)
  target_link_libraries(llmlua-cuda-emulated PRIVATE cuda-emulated)
  llmlua_plugin(llmlua-cuda-emulated)
  foreach(source IN LISTS CUDA_TESTS)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_include_directories(${name} PRIVATE core spec/c)
    target_link_libraries(${name} PRIVATE cuda-emulated engine ${PCRE2_STATIC} ${UTF8PROC_STATIC} ${XXHASH_STATIC})
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT LLMLUA_WEIGHT_CACHE=off)
    # Small inputs once more with the costly checks, threads in other orders.
    foreach(order reverse shuffle)
      if(name MATCHES "^test_cuda_")
        add_test(NAME ${name}_${order} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
        set_tests_properties(${name}_${order} PROPERTIES ENVIRONMENT
          "LLMLUA_WEIGHT_CACHE=off;LLMLUA_EMULATION=check;LLMLUA_EMULATION_ORDER=${order}$<$<STREQUAL:${order},shuffle>::5>")
      endif()
    endforeach()
  endforeach()
  llmlua_kernel_tests(emulated_tests cuda-emulated)
endif()

# Specs of the engine once more on the emulated device: spec_NAME_cuda. Those that would take minutes there
# (tree, strategies) are run by hand: README, "On a GPU".
if(TARGET llmlua-cuda-emulated AND TARGET llmlua)
  foreach(name tensor logits cache model rng sampler stop stream match merge prefix_mask)
    add_test(NAME spec_${name}_cuda COMMAND llmlua spec/run.lua spec/${name}_spec.lua --output=plainTerminal
             WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(spec_${name}_cuda PROPERTIES ENVIRONMENT
      "LLMLUA_PROGRAM=$<TARGET_FILE:llmlua>;LLMLUA_PRELOAD=${SPEC_PRELOAD};LLMLUA_WEIGHT_CACHE=off;LLMLUA_DEVICE=cuda-emulated;LLMLUA_TEST_DEVICE=cuda-emulated;LLMLUA_TEST_INVARIANT=1")
  endforeach()
endif()

# ---- by nvcc ----

find_program(NVCC nvcc HINTS /usr/local/cuda/bin)
if(NOT NVCC)
  message(STATUS "CUDA: no toolkit found, no plug-in for GPUs")
elseif(CUDA_KERNELS AND NOT LLMLUA_SANITIZE AND NOT LLMLUA_FUZZ)
  execute_process(COMMAND ${NVCC} --list-gpu-arch OUTPUT_VARIABLE known OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(architectures "")
  foreach(architecture 75 80 86 89 90 100 120)
    if(known MATCHES "compute_${architecture}(\n|$)")
      list(APPEND architectures ${architecture})
    endif()
  endforeach()
  set(LLMLUA_CUDA_ARCHITECTURES "${architectures}" CACHE STRING
      "GPUs that the CUDA plug-in is compiled for; newer ones than the last compile its PTX as they load it")
  message(STATUS "CUDA: nvcc found at ${NVCC}, building for ${LLMLUA_CUDA_ARCHITECTURES}")
  get_filename_component(toolkit ${NVCC} DIRECTORY)
  get_filename_component(toolkit ${toolkit} DIRECTORY)
  find_library(CUDART_STATIC libcudart_static.a HINTS ${toolkit}/lib64 ${toolkit}/targets/x86_64-linux/lib
               REQUIRED)
  find_path(CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${toolkit}/include REQUIRED)
  set(options -O3 -std=c++17 -lineinfo -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-fno-threadsafe-statics -Xptxas=-v)
  execute_process(COMMAND ${NVCC} --help OUTPUT_VARIABLE help)
  if(help MATCHES "--compress-mode")
    list(APPEND options --compress-mode=size) # a quarter of the bytes
  endif()
  foreach(architecture IN LISTS LLMLUA_CUDA_ARCHITECTURES)
    list(APPEND options -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET LLMLUA_CUDA_ARCHITECTURES 0 oldest)
  list(GET LLMLUA_CUDA_ARCHITECTURES -1 newest)
  list(APPEND options -gencode=arch=compute_${newest},code=compute_${newest})
  set(objects "")
  foreach(source IN LISTS CUDA_KERNELS)
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    # What ptxas says of registers and shared memory is kept beside the object.
    add_custom_command(
      OUTPUT ${object}
      COMMAND sh ${CMAKE_SOURCE_DIR}/kernels/cuda/compile.sh ${object} ${CMAKE_C_COMPILER_LAUNCHER} ${NVCC}
              ${options} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} ${CMAKE_SOURCE_DIR}/kernels/cuda/compile.sh
      DEPFILE ${object}.d
      COMMENT "Building CUDA object cuda/${name}.o"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_library(llmlua-cuda MODULE ${CUDA_SOURCES} ${objects})
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE)
  set_target_properties(llmlua-cuda PROPERTIES LINKER_LANGUAGE C)
  target_compile_definitions(llmlua-cuda PRIVATE _GNU_SOURCE LLMLUA_CUDA_LEAST=${oldest})
  target_include_directories(llmlua-cuda PRIVATE kernels kernels/cuda)
  target_include_directories(llmlua-cuda SYSTEM PRIVATE ${CUDA_INCLUDE_DIR})
  target_link_libraries(llmlua-cuda PRIVATE ${CUDART_STATIC} Threads::Threads rt)
  llmlua_plugin(llmlua-cuda)
  install(TARGETS llmlua-cuda LIBRARY DESTINATION lib)
  add_library(cuda-host STATIC EXCLUDE_FROM_ALL ${CUDA_SOURCES} ${objects})
  target_compile_definitions(cuda-host PUBLIC _GNU_SOURCE LLMLUA_CUDA_LEAST=${oldest})
  target_include_directories(cuda-host PUBLIC kernels kernels/cuda)
  target_include_directories(cuda-host SYSTEM PUBLIC ${CUDA_INCLUDE_DIR})
  target_link_libraries(cuda-host PUBLIC ${CUDART_STATIC} Threads::Threads rt dl stdc++)
  add_dependencies(cuda-host llmlua-cuda) # which makes the objects
  llmlua_kernel_tests(gpu_tests cuda-host)
endif()
