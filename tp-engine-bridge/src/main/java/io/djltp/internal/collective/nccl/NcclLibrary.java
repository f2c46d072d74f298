package io.djltp.internal.collective.nccl;

import io.djltp.collective.CollectiveException;
import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.cuda.global.cudart;
import org.bytedeco.cuda.global.nccl;
import org.bytedeco.javacpp.Loader;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Optional;
import java.util.function.ToIntFunction;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The NCCL and CUDA libraries of the system, as the {@code nccl} backend finds them.
 *
 * <p>The binding comes with this project; {@code libnccl.so.2}, {@code libcudart.so.12} and the
 * driver's {@code libcuda.so.1} do not.
 */
public final class NcclLibrary {

    /** The oldest NCCL that will do: the first with {@code ncclCommSplit}. */
    public static final int MINIMUM_VERSION = 21800;

    /** The number of bytes of a unique id. */
    public static final int UNIQUE_ID_BYTES = nccl.NCCL_UNIQUE_ID_BYTES;

    private static final Logger logger = LoggerFactory.getLogger(NcclLibrary.class);

    private static final Pattern MISSING =
            Pattern.compile("(lib(?:nccl|cudart|cuda)\\.so[.0-9]*): cannot open");
    private static final int DRIVER_NAME_LENGTH = 256;

    private static boolean loaded;
    private static @Nullable String problem;

    private NcclLibrary() {}

    /**
     * Loads the libraries. Later calls return at once, or fail with the same message.
     *
     * @throws CollectiveException if a library is missing or too old; the message says which, and
     *     what to do
     */
    public static synchronized void load() {
        if (!loaded && problem == null) {
            problem = tryLoad();
            loaded = problem == null;
        }

        if (problem != null) {
            throw new CollectiveException(problem);
        }
        checkVersion(versionCode());
    }

    private static @Nullable String tryLoad() {
        LibTorch.liftMemoryLimit();
        try {
            Loader.load(cudart.class);
            Loader.load(nccl.class);
            logger.debug("NCCL {} loaded", formatVersion(versionCode()));
            return null;
        } catch (LinkageError e) {
            return describe(e);
        }
    }

    /**
     * Says what is wrong when the libraries could not be loaded.
     *
     * @param error what the loader threw; what it was really about may be in its causes
     * @return the library that is missing, and how to get it
     */
    static String describe(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            Matcher matcher = MISSING.matcher(String.valueOf(cause.getMessage()));
            if (matcher.find()) {
                return ("The nccl backend needs %s, which the system does not have: %s, or"
                                + " name its folder in LD_LIBRARY_PATH.")
                        .formatted(matcher.group(1), remedy(matcher.group(1)));
            }
        }
        return "The nccl backend cannot load the CUDA binding for "
                + Loader.getPlatform()
                + " ("
                + error
                + "): it needs Linux, and org.bytedeco:cuda with the classifier of the platform on"
                + " the class path.";
    }

    private static String remedy(String library) {
        if (library.startsWith("libnccl")) {
            return "install NCCL (apt-get install libnccl2)";
        }
        if (library.startsWith("libcudart")) {
            return "install the CUDA 12 runtime (apt-get install cuda-cudart-12-9)";
        }
        return "install the NVIDIA driver";
    }

    /**
     * Checks that NCCL is new enough.
     *
     * @param version what {@code ncclGetVersion} says
     */
    static void checkVersion(int version) {
        if (version < MINIMUM_VERSION) {
            throw new CollectiveException(
                    ("The nccl backend needs NCCL %s or newer, but libnccl.so.2 is %s: install a"
                                    + " newer one (apt-get install libnccl2), or name its folder"
                                    + " in LD_LIBRARY_PATH.")
                            .formatted(formatVersion(MINIMUM_VERSION), formatVersion(version)));
        }
    }

    /**
     * Says why the backend cannot be used here. Never throws.
     *
     * @return the reason and what to do about it, or nothing if there is a GPU that can be used
     */
    public static Optional<String> whyNot() {
        try {
            load();
            int[] count = new int[1];
            int error = cudart.cudaGetDeviceCount(count);
            if (error != cudart.cudaSuccess || count[0] == 0) {
                cudart.cudaGetLastError(); // not to be found by others
                return Optional.of(
                        "The nccl backend finds no GPU ("
                                + Cuda.describe(error)
                                + "): check nvidia-smi and CUDA_VISIBLE_DEVICES.");
            }
            return Optional.empty();
        } catch (RuntimeException | LinkageError e) {
            return Optional.of(String.valueOf(e.getMessage()));
        }
    }

    /**
     * Returns the version of NCCL.
     *
     * @return such as {@code 2.27.3}
     */
    public static String version() {
        load();
        return formatVersion(versionCode());
    }

    /**
     * Returns the CUDA version that the driver supports.
     *
     * @return such as {@code 12.9}, or {@code none} without a driver
     */
    public static String driverVersion() {
        return formatCudaVersion(query("cudaDriverGetVersion", cudart::cudaDriverGetVersion));
    }

    /**
     * Returns the version of the CUDA runtime.
     *
     * @return such as {@code 12.9}
     */
    public static String runtimeVersion() {
        return formatCudaVersion(query("cudaRuntimeGetVersion", cudart::cudaRuntimeGetVersion));
    }

    /**
     * Returns the number of GPUs that this process may use.
     *
     * @return the number of GPUs
     */
    public static int deviceCount() {
        load();
        int[] count = new int[1];
        int error = cudart.cudaGetDeviceCount(count);
        if (error == cudart.cudaErrorNoDevice) {
            cudart.cudaGetLastError();
            return 0;
        }
        Cuda.check(error, "cudaGetDeviceCount");
        return count[0];
    }

    /**
     * Returns the name of a GPU.
     *
     * @param device the number of the GPU, from 0
     * @return such as {@code NVIDIA H200}
     */
    public static String deviceName(int device) {
        load();
        byte[] name = new byte[DRIVER_NAME_LENGTH];
        int[] handle = new int[1];
        if (cudart.cuInit(0) != 0
                || cudart.cuDeviceGet(handle, device) != 0
                || cudart.cuDeviceGetName(name, name.length, handle[0]) != 0) {
            return "GPU " + device;
        }
        String text = new String(name, StandardCharsets.UTF_8);
        int end = text.indexOf('\0');
        return end < 0 ? text : text.substring(0, end);
    }

    /**
     * Returns whether a GPU can read and write ordinary host memory, as on Grace Hopper. Where it
     * can by page faults only, as Linux lets any GPU of a recent driver, it does not count.
     *
     * @param device the number of the GPU, from 0
     * @return whether tensors of the CPU can take part in its collectives
     */
    public static boolean reachesHostMemory(int device) {
        int attribute = cudart.cudaDevAttrPageableMemoryAccessUsesHostPageTables;
        return query(
                        "cudaDeviceGetAttribute of GPU " + device,
                        value -> cudart.cudaDeviceGetAttribute(value, attribute, device))
                != 0;
    }

    private static int query(String name, ToIntFunction<int[]> call) {
        load();
        int[] value = new int[1];
        Cuda.check(call.applyAsInt(value), name);
        return value[0];
    }

    private static int versionCode() {
        int[] version = new int[1];
        Cuda.checkNccl(nccl.ncclGetVersion(version), "ncclGetVersion");
        return version[0];
    }

    /**
     * Formats a version of NCCL, whose code has changed with 2.9.
     *
     * @param code such as 2804 or 22703
     */
    static String formatVersion(int code) {
        int major = code < 10_000 ? code / 1000 : code / 10_000;
        int minor = code < 10_000 ? code / 100 % 10 : code / 100 % 100;
        return String.format(Locale.ROOT, "%d.%d.%d", major, minor, code % 100);
    }

    private static String formatCudaVersion(int code) {
        return code == 0
                ? "none"
                : String.format(Locale.ROOT, "%d.%d", code / 1000, code / 10 % 100);
    }
}
