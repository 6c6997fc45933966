# NAME FLAGS
name=$1; shift
F="-DPCRE2_CODE_UNIT_WIDTH=8 -D_GNU_SOURCE -O3 -g1 -fPIC -ffp-contract=off -Wno-psabi -fno-math-errno -fno-trapping-math -std=gnu11 -mavx2 -mfma -mf16c -mbmi2 -O2 -DFEWF"
gcc $F "$@" -c kernels/cpu/products_avx2.c -o /tmp/perf/$name.o && gcc -O2 -D_GNU_SOURCE -Ikernels spec/c/bench_kernels.c /tmp/perf/$name.o -Wl,--allow-multiple-definition /tmp/fix/build/libengine.a -o /tmp/perf/bk_$name -lm -lpthread
