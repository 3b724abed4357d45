S0=$SECONDS; R=$PWD; OUTX=$OUT
export PYTHONUNBUFFERED=1
rm -rf /tmp/nm; mkdir -p /tmp/nm && tar xzf build/prebuilt/norms.tgz -C /tmp/nm && cd /tmp/nm
sed -n '/^case \${1/,$!p' dev > /tmp/devlib.sh; sed -i 's|^ROOT=.*|ROOT=/tmp/nm|' /tmp/devlib.sh
cat > /tmp/cfg.sh <<'X'
source /tmp/devlib.sh; cd /tmp/nm; gpu_setup; mkdir -p build
cmake --preset gpu -DFB_TORCH_DIR="$TORCH_DIR" -DFB_BUILD_SERVER=OFF -DCMAKE_CUDA_ARCHITECTURES=90-real > /tmp/cfg.log 2>&1 || tail /tmp/cfg.log
X
bash /tmp/cfg.sh; echo "cfg t $((SECONDS-S0))"
cmake --build build/gpu -j 16 --target norm_tune softmax_tune cross_entropy_tune tests_kernels_layer_norm_layer_norm_test_cc tests_kernels_softmax_softmax_test_cc tests_kernels_rms_norm_rms_norm_test_cc tests_kernels_fused_add_rms_norm_fused_add_rms_norm_test_cc fb_kernel_layer_norm fb_kernel_softmax fb_kernel_rms_norm fb_kernel_fused_add_rms_norm > /tmp/build.log 2>&1 || { grep -E "error|FAILED" /tmp/build.log | cut -c1-300 | head -20; }
echo "build t $((SECONDS-S0))"
export FUSEBOARD_HOME=$PWD/build/gpu/stage
T=build/gpu/tests/kernels/tuning
for op in layer_norm rms_norm; do timeout 100 ./$T/norm_tune $op 128 1024 2048 4096 5120 8192 16384 65536 131072 262144 > $OUTX/$op.txt 2>&1; echo "$op t $((SECONDS-S0))"; done
timeout 40 ./$T/softmax_tune > $OUTX/softmax.txt 2>&1; echo "softmax t $((SECONDS-S0))"
timeout 60 ncu --set full --kernel-name-base demangled -k 'regex:RingKernel.*true' --launch-skip 2 --launch-count 1 --kill yes ./$T/cross_entropy_tune 8192x128256 > $OUTX/ncu.txt 2>&1; echo "ncu t $((SECONDS-S0))"
for op in layer_norm softmax rms_norm fused_add_rms_norm; do timeout 60 build/gpu/tests/kernels/$op/tests_kernels_${op}_${op}_test_cc --gtest_filter='Gpu*' > $OUTX/t_$op.log 2>&1; echo "$op $?"; grep -E "FAILED|PASSED" $OUTX/t_$op.log | head -5; done; echo "t $((SECONDS-S0))"
