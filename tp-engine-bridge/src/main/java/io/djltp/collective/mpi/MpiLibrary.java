package io.djltp.collective.mpi;

import ai.djl.ndarray.types.DataType;

import com.sun.jna.Library;
import com.sun.jna.Memory;
import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Platform;
import com.sun.jna.Pointer;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.ReduceOp;

import java.util.EnumMap;
import java.util.Map;
import java.util.Optional;
import java.util.function.Predicate;

/**
 * The Open MPI library of the system, as the {@code mpi} backend finds it.
 *
 * <p>Open MPI 4 and 5 have the same soname and the same handles, which are the addresses of global
 * variables. Other MPIs (MPICH, Intel MPI) have handles of another kind, and are refused.
 */
public final class MpiLibrary {

    /** The system property and environment variable with the name or path of the library. */
    public static final String LIBRARY_NAME = "TP_MPI_LIBRARY";

    /** Tells MPI that a rank's input lies where its output goes. */
    static final long IN_PLACE = 1;

    /** {@code MPI_THREAD_MULTIPLE}: any thread may call MPI at any time. */
    static final int THREAD_MULTIPLE = 3;

    private static final int RTLD_NOW = 0x2;
    private static final int RTLD_GLOBAL = Platform.isMac() ? 0x8 : 0x100;
    private static final int TEXT_BYTES = 1 << 13; // more than any MPI writes, MPICH included

    private static MpiLibrary instance;

    private final NativeLibrary library;
    private final String version;
    private final Map<DataType, Long> types = new EnumMap<>(DataType.class);
    private final Map<ReduceOp, Long> ops = new EnumMap<>(ReduceOp.class);

    private MpiLibrary(NativeLibrary library) {
        this.library = library;
        version = readVersion();
        types.put(DataType.FLOAT32, handle("ompi_mpi_float"));
        types.put(DataType.FLOAT64, handle("ompi_mpi_double"));
        types.put(DataType.FLOAT16, handle("ompi_mpi_uint16_t"));
        types.put(DataType.BFLOAT16, handle("ompi_mpi_uint16_t"));
        types.put(DataType.INT32, handle("ompi_mpi_int32_t"));
        types.put(DataType.INT64, handle("ompi_mpi_int64_t"));
        ops.put(ReduceOp.SUM, handle("ompi_mpi_op_sum"));
        ops.put(ReduceOp.MAX, handle("ompi_mpi_op_max"));
        ops.put(ReduceOp.MIN, handle("ompi_mpi_op_min"));
    }

    /**
     * Loads the library. Later calls return at once.
     *
     * @return the library
     * @throws CollectiveException if it is missing or no Open MPI; the message says what to do
     */
    static synchronized MpiLibrary load() {
        if (instance == null) {
            String name = name();
            MpiSignals.leaveToJava();
            MpiEnd.askNotToWait();
            NativeLibrary library = open(name);
            checkKind(name, symbol -> has(library, symbol));
            checkPointers(Native.POINTER_SIZE);
            bind(name, library);
            instance = new MpiLibrary(library);
        }
        return instance;
    }

    /**
     * Says why the backend cannot be used here. Never throws, and does not start MPI.
     *
     * @return the reason and what to do about it, or nothing if there is an Open MPI
     */
    public static Optional<String> whyNot() {
        try {
            load();
            return Optional.empty();
        } catch (RuntimeException | LinkageError e) {
            return Optional.of(String.valueOf(e.getMessage()));
        }
    }

    /**
     * Returns what the library says about itself. Does not start MPI.
     *
     * @return such as {@code Open MPI v4.1.4, package: Debian OpenMPI, ...}
     * @throws CollectiveException if the library is missing or no Open MPI
     */
    public static String version() {
        return load().version;
    }

    private static String name() {
        String name = System.getProperty(LIBRARY_NAME, System.getenv(LIBRARY_NAME));
        if (name != null && !name.isBlank()) {
            return name;
        }
        return Platform.isMac() ? "libmpi.40.dylib" : "libmpi.so.40";
    }

    private static NativeLibrary open(String name) {
        try {
            // global: the plug-ins that Open MPI loads look for its symbols
            return NativeLibrary.getInstance(
                    name, Map.of(Library.OPTION_OPEN_FLAGS, RTLD_NOW | RTLD_GLOBAL));
        } catch (UnsatisfiedLinkError e) {
            throw new CollectiveException(
                    "The mpi backend cannot load "
                            + name
                            + " ("
                            + String.valueOf(e.getMessage()).lines().findFirst().orElse("")
                            + "): install Open MPI 4 or 5 (apt-get install openmpi-bin"
                            + " libopenmpi3), or name the library in "
                            + LIBRARY_NAME
                            + ".",
                    e);
        }
    }

    /**
     * Checks that a library is an Open MPI.
     *
     * @param name the name of the library
     * @param has whether it has a symbol
     */
    static void checkKind(String name, Predicate<String> has) {
        if (has.test("ompi_mpi_comm_world")) {
            return;
        }
        throw new CollectiveException(
                "The mpi backend needs Open MPI 4 or 5, but "
                        + name
                        + (has.test("MPI_Init_thread")
                                ? " is another MPI (MPICH or Intel MPI)"
                                : " is not an MPI library")
                        + ": install Open MPI (apt-get install openmpi-bin libopenmpi3), or name"
                        + " its library in "
                        + LIBRARY_NAME
                        + ".");
    }

    /**
     * Checks that addresses fit the functions' parameters.
     *
     * @param bytes the size of an address
     */
    static void checkPointers(int bytes) {
        if (bytes != Long.BYTES) {
            throw new CollectiveException(
                    "The mpi backend needs a 64-bit JVM, but addresses have "
                            + bytes
                            + " bytes here: use a 64-bit Java.");
        }
    }

    private static void bind(String name, NativeLibrary library) {
        try {
            MpiFunctions.bind(library);
        } catch (UnsatisfiedLinkError e) {
            throw new CollectiveException(
                    "The mpi backend needs MPI 3.1 or newer, but "
                            + name
                            + " lacks a function ("
                            + e.getMessage()
                            + "): install Open MPI 4 or 5.",
                    e);
        }
    }

    private static boolean has(NativeLibrary library, String symbol) {
        try {
            library.getGlobalVariableAddress(symbol);
            return true;
        } catch (UnsatisfiedLinkError e) {
            return false;
        }
    }

    private static String readVersion() {
        byte[] text = new byte[TEXT_BYTES];
        try (Memory length = new Memory(Integer.BYTES)) {
            check(
                    MpiFunctions.MPI_Get_library_version(text, Pointer.nativeValue(length)),
                    "MPI_Get_library_version");
        }
        return Native.toString(text).trim();
    }

    /**
     * Returns a handle.
     *
     * @param variable the global variable that it is the address of
     * @return the handle
     */
    final long handle(String variable) {
        return Pointer.nativeValue(library.getGlobalVariableAddress(variable));
    }

    /**
     * Returns MPI's type for elements. MPI cannot add 16-bit floating point numbers: they are moved
     * as what they are not, 16-bit integers.
     *
     * @param type the data type
     * @return the handle
     */
    long type(DataType type) {
        return types.get(type);
    }

    /**
     * Returns MPI's name for a reduction.
     *
     * @param op the reduction
     * @return the handle
     */
    long op(ReduceOp op) {
        return ops.get(op);
    }

    /**
     * Fails if a function has failed.
     *
     * @param code what it returned
     * @param function its name
     */
    static void check(int code, String function) {
        if (code == 0) {
            return;
        }
        byte[] text = new byte[TEXT_BYTES];
        try (Memory length = new Memory(Integer.BYTES)) {
            MpiFunctions.MPI_Error_string(code, text, Pointer.nativeValue(length));
        }
        throw new CollectiveException(
                function + " failed with code " + code + ": " + Native.toString(text).trim());
    }
}
