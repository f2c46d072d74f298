package io.djltp.internal.libtorch;

import ai.djl.engine.EngineException;
import ai.djl.pytorch.jni.LibUtils;

import com.sun.jna.Function;
import com.sun.jna.FunctionMapper;
import com.sun.jna.Library;
import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Platform;
import com.sun.jna.ptr.IntByReference;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/** Functions of the libtorch that is loaded, and of what it brings along, that no preset binds. */
public final class LibTorchFunctions {

    // from dlfcn.h of Linux: no other copy, and its names stay its own
    private static final int RTLD_LAZY = 1;
    private static final int RTLD_NOLOAD = 4;

    // from driver_types.h of CUDA
    private static final int CAPABILITY_MAJOR = 75;
    private static final int CAPABILITY_MINOR = 76;

    /** Libtorch's part for GPUs, which a libtorch for processors lacks. */
    private static final String CUDA = "torch_cuda";

    private LibTorchFunctions() {}

    /**
     * Checks that functions can be called at all: JNA unpacks a library of its own. The JVM says
     * why it cannot only to who asks first; this says it each time.
     *
     * @throws EngineException if it cannot; the message says why, and what to do
     */
    public static void check() {
        try {
            Native.getDefaultStringEncoding(); // initializes the class
        } catch (LinkageError e) {
            Throwable cause = e;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            throw new EngineException(
                    "JNA, which calls functions of libtorch, cannot load its own library: "
                            + cause.getMessage()
                            + ". It unpacks it into a folder that needs room and from which"
                            + " libraries can be loaded; the system property jna.tmpdir names"
                            + " another one.",
                    e);
        }
    }

    /**
     * Returns a function.
     *
     * @param name its symbol
     * @return the function
     * @throws UnsatisfiedLinkError if there is none of this name, as on Windows
     */
    public static Function get(String name) {
        return get("torch_cpu", name);
    }

    /**
     * Returns a function that libtorch may not have.
     *
     * @param name its symbol
     * @return the function, or {@code null} if there is none of this name
     */
    public static @Nullable Function find(String name) {
        try {
            return get(name);
        } catch (UnsatisfiedLinkError e) {
            return null;
        }
    }

    /**
     * Returns a function of libtorch's part for GPUs, or of CUDA's libraries, which it depends on.
     *
     * @param name its symbol
     * @return the function
     * @throws UnsatisfiedLinkError if there is none of this name, as in a libtorch for processors
     */
    public static Function ofCuda(String name) {
        return get(CUDA, name);
    }

    /**
     * Returns the compute capability of a GPU, by the CUDA runtime that libtorch depends on: that
     * may be a copy of libtorch's own, under a name that nobody else knows.
     *
     * @param device the number of the GPU, from 0
     * @return such as 80 for 8.0
     * @throws UnsatisfiedLinkError if this libtorch has no part for GPUs
     * @throws IllegalStateException if there is no such GPU
     */
    public static int computeCapability(int device) {
        return 10 * attribute(CAPABILITY_MAJOR, device) + attribute(CAPABILITY_MINOR, device);
    }

    private static int attribute(int number, int device) {
        IntByReference value = new IntByReference();
        int error =
                ofCuda("cudaDeviceGetAttribute").invokeInt(new Object[] {value, number, device});
        Errors.checkState(error == 0, "cudaDeviceGetAttribute failed: error %s", error);
        return value.getValue();
    }

    /**
     * Binds the native method of a class to a function, for many calls that are short: each costs a
     * tenth of one by {@link Function}.
     *
     * @param type the class
     * @param name the symbol of the function
     * @return whether there is one of this name
     */
    public static boolean bind(Class<?> type, String name) {
        if (find(name) == null) {
            return false;
        }
        FunctionMapper mapper = (library, method) -> name;
        Native.register(type, open("torch_cpu", Map.of(Library.OPTION_FUNCTION_MAPPER, mapper)));
        return true;
    }

    private static Function get(String library, String name) {
        return open(library, Map.of()).getFunction(name);
    }

    private static NativeLibrary open(String library, Map<String, ?> more) {
        LibTorch.load();
        Path file = Path.of(LibUtils.getLibtorchPath(), System.mapLibraryName(library));
        Map<String, Object> options = new HashMap<>(more);
        if (Platform.isLinux()) {
            // without a file JNA throws, and with one that is not loaded it crashes
            int known = library.equals(CUDA) ? 0 : RTLD_NOLOAD;
            options.put(Library.OPTION_OPEN_FLAGS, RTLD_LAZY | known);
        }
        return NativeLibrary.getInstance(file.toString(), options);
    }
}
