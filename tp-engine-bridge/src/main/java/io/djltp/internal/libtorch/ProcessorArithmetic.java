package io.djltp.internal.libtorch;

import com.sun.jna.Function;

import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;

/**
 * Which arithmetic of 16 bits the processor has, as libtorch finds it: what {@code
 * torch.cpu._is_avx512_bf16_supported()} and {@code _is_amx_tile_supported()} say in Python. The
 * preset does not bind these two, so they are looked up in the libtorch that is loaded.
 */
public final class ProcessorArithmetic {

    /** Without arguments, the result is a C++ {@code bool}. */
    private static final List<String> FUNCTIONS =
            List.of(
                    "_ZN2at3cpu24is_avx512_bf16_supportedEv",
                    "_ZN2at3cpu21is_amx_tile_supportedEv");

    private ProcessorArithmetic() {}

    /** {@return why products in bfloat16 would be emulated, or nothing if they would not} */
    public static Optional<String> whyNoBFloat16() {
        return limit(System.getenv()).or(ProcessorArithmetic::instructions);
    }

    /**
     * Returns what keeps oneDNN, which computes libtorch's products, from instructions that the
     * processor may have: an instruction set below AVX512_CORE_BF16 in its environment variable.
     *
     * @param environment the variables
     * @return what keeps it, or nothing
     */
    public static Optional<String> limit(Map<String, String> environment) {
        for (String name : List.of("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")) {
            String value = environment.get(name);
            if (value != null) {
                String set = value.toUpperCase(Locale.ROOT);
                boolean enough =
                        List.of("ALL", "DEFAULT").contains(set)
                                || set.matches("AVX512_CORE_(BF16|FP16|AMX.*)|AVX10.*");
                return enough
                        ? Optional.empty()
                        : Optional.of("is switched off by " + name + "=" + value);
            }
        }
        return Optional.empty();
    }

    private static Optional<String> instructions() {
        for (String name : FUNCTIONS) {
            Function function = LibTorchFunctions.find(name);
            if (function == null) {
                return Optional.of("is not looked for on this platform: libtorch has no " + name);
            }
            if ((function.invokeInt(new Object[0]) & 0xff) != 0) {
                return Optional.empty();
            }
        }
        return Optional.of(
                "needs a processor with AVX512-BF16 or AMX, and libtorch finds neither here");
    }
}
