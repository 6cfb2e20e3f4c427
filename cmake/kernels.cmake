# The cpu backend's kernels, src/backend/cpu_*.c, are compiled once for each instruction set; cpu.c chooses at run time.
# Their external names end in the set's name (CPU() in cpu_internal.h). OpenMP's simd and fused multiply-adds are what
# the loops are written for; they read no errno and raise no traps, so selects may be vectorized.
file(GLOB CLEAVE_KERNELS CONFIGURE_DEPENDS src/backend/cpu_*.c)
list(FILTER CLEAVE_KERNELS EXCLUDE REGEX "_test\\.c$")
list(FILTER CLEAVE_SOURCES EXCLUDE REGEX "src/backend/cpu_[a-z_]*\\.c$")

set(CLEAVE_KERNEL_FLAGS -ffp-contract=fast -fno-math-errno -fno-trapping-math)
set(CLEAVE_KERNEL_SETS base)
set(CLEAVE_KERNEL_FLAGS_avx2 -march=x86-64-v3)
set(CLEAVE_KERNEL_FLAGS_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  list(APPEND CLEAVE_KERNEL_SETS avx2 avx512)
  set_source_files_properties(src/backend/cpu.c PROPERTIES COMPILE_DEFINITIONS CLV_CPU_X86)
endif()

set(CLEAVE_KERNEL_OBJECTS)
foreach(isa ${CLEAVE_KERNEL_SETS})
  add_library(cleave_kernels_${isa} OBJECT ${CLEAVE_KERNELS})
  target_compile_definitions(cleave_kernels_${isa} PRIVATE CLV_CPU_ISA=${isa})
  target_compile_options(cleave_kernels_${isa} PRIVATE ${CLEAVE_KERNEL_FLAGS} ${CLEAVE_KERNEL_FLAGS_${isa}})
  target_include_directories(cleave_kernels_${isa} PRIVATE ${CBLAS_INCLUDE_DIR})
  target_link_libraries(cleave_kernels_${isa} PRIVATE cleave_flags OpenMP::OpenMP_C)
  list(APPEND CLEAVE_KERNEL_OBJECTS $<TARGET_OBJECTS:cleave_kernels_${isa}>)
endforeach()
