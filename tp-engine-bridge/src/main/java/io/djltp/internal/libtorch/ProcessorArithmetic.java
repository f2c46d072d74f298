package io.djltp.internal.libtorch;

import com.sun.jna.Function;
import com.sun.jna.Platform;

import java.nio.file.Files;
import java.nio.file.Path;
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

    /** Where Linux describes the first processor, with a folder for its caches. */
    private static final Path PROCESSOR = Path.of("/sys/devices/system/cpu/cpu0");

    private ProcessorArithmetic() {}

    /**
     * Returns whether libtorch 2.7 computes wrong convolutions and LSTMs here, in DJL alone too. On
     * a virtual machine that hides the sizes of the caches, oneDNN 3.7 takes them for 0 and leaves
     * parts of the arrays unset that it pads (<a
     * href="https://github.com/uxlfoundation/oneDNN/issues/5313">oneDNN 5313</a>, of another
     * processor). PyTorch 2.13 with oneDNN 3.12 computes the same ones right.
     *
     * @return whether Linux knows the processor, and none of its caches
     */
    public static boolean hasWrongConvolutions() {
        return Platform.isIntel()
                && Files.isDirectory(PROCESSOR)
                && Files.notExists(PROCESSOR.resolve("cache"));
    }

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
