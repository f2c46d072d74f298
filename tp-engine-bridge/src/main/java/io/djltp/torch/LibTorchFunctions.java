package io.djltp.torch;

import ai.djl.pytorch.jni.LibUtils;

import com.sun.jna.Function;
import com.sun.jna.Library;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Platform;

import java.nio.file.Path;
import java.util.Map;

/** Functions of the libtorch that is loaded, and of what it brings along, that no preset binds. */
final class LibTorchFunctions {

    // from dlfcn.h of Linux: no other copy, and its names stay its own
    private static final int RTLD_LAZY = 1;
    private static final int RTLD_NOLOAD = 4;

    private LibTorchFunctions() {}

    /**
     * Returns a function.
     *
     * @param name its symbol
     * @throws UnsatisfiedLinkError if there is none of this name, as on Windows
     */
    static Function get(String name) {
        return get("torch_cpu", name);
    }

    /**
     * Returns a function of libtorch's part for GPUs, or of CUDA's libraries, which it depends on.
     *
     * @param name its symbol
     * @throws UnsatisfiedLinkError if there is none of this name, as in a libtorch for processors
     */
    static Function ofCuda(String name) {
        return get("torch_cuda", name);
    }

    private static Function get(String library, String name) {
        LibTorch.load();
        Path file = Path.of(LibUtils.getLibtorchPath(), System.mapLibraryName(library));
        Map<String, ?> options =
                Platform.isLinux()
                        ? Map.of(Library.OPTION_OPEN_FLAGS, RTLD_LAZY | RTLD_NOLOAD)
                        : Map.of();
        return NativeLibrary.getInstance(file.toString(), options).getFunction(name);
    }
}
