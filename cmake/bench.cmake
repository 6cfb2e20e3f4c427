# Programs that measure: bench/NAME.c with its parts bench/NAME_*.c and what is common to all -> bench_NAME. They are
# built with everything; the scripts bench/NAME run them beside their peers.
file(GLOB CLEAVE_BENCHES CONFIGURE_DEPENDS bench/*.c)
file(GLOB CLEAVE_BENCH_COMMON CONFIGURE_DEPENDS bench/common/*.c)
list(FILTER CLEAVE_BENCHES EXCLUDE REGEX "bench/[^/]*_[^/]*$")

add_library(cleave_bench STATIC ${CLEAVE_BENCH_COMMON})
target_link_libraries(cleave_bench PUBLIC cleave_core)
foreach(source ${CLEAVE_BENCHES})
  get_filename_component(name ${source} NAME_WE)
  file(GLOB parts CONFIGURE_DEPENDS bench/${name}_*.c)
  add_executable(bench_${name} ${source} ${parts})
  target_include_directories(bench_${name} PRIVATE ${CBLAS_INCLUDE_DIR})
  target_link_libraries(bench_${name} PRIVATE cleave_bench)
endforeach()
