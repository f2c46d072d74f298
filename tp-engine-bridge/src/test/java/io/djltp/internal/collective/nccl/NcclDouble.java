package io.djltp.internal.collective.nccl;

import com.sun.jna.Function;
import com.sun.jna.Library;
import com.sun.jna.NativeLibrary;
import com.sun.jna.NativeLong;
import com.sun.jna.Pointer;

import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.Loader;
import org.testng.SkipException;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * The double of CUDA and NCCL of {@code src/test/c}: built with the system's C compiler, and loaded
 * before JavaCPP's bindings, which then find libraries of the names that they need in the process.
 *
 * <p>DJL looks for GPUs with whatever {@code libcudart.so} the system has, and makes its functions
 * those of the whole process. The double and the bindings are therefore opened such that each looks
 * into the libraries that it depends on first.
 */
public final class NcclDouble {

    private static final String CUDART = "libcudart.so.12";
    private static final String CUDA = "libcuda.so.1";
    private static final String NCCL = "libnccl.so.2";

    /** {@code RTLD_LAZY | RTLD_DEEPBIND}. */
    private static final int OPEN_FLAGS = 1 | 8;

    /** Keeps them open. */
    private static final List<NativeLibrary> LIBRARIES = new ArrayList<>();

    private static Path folder;
    private static String problem;
    private static boolean loaded;

    private NcclDouble() {}

    /**
     * Builds the double, if that has not been done.
     *
     * @return the folder with the libraries
     * @throws SkipException if there is no compiler for it
     */
    public static synchronized Path build() {
        if (folder == null && problem == null) {
            String own = System.getProperty("basedir", ".");
            Path base = Path.of(System.getProperty("djltp.nccl.double", own));
            try {
                folder = build(base.resolve("src/test/c"), base.resolve("target/nccl-double"));
            } catch (IOException | InterruptedException e) {
                problem =
                        String.valueOf(e.getMessage()).contains("gcc")
                                ? "There is no gcc: apt-get install gcc libc6-dev"
                                : "the double of NCCL cannot be built: " + e;
            }
        }
        if (problem != null) {
            throw new SkipException(problem);
        }
        return folder;
    }

    private static Path build(Path sources, Path target) throws IOException, InterruptedException {
        if (!System.getProperty("os.name").equals("Linux")) {
            throw new IOException("it needs Linux");
        }
        Path absolute = Files.createDirectories(target).toAbsolutePath();
        try (FileChannel lock =
                FileChannel.open(
                        absolute.resolve("lock"),
                        StandardOpenOption.CREATE,
                        StandardOpenOption.WRITE)) {
            lock.lock(); // tests run in two processes, which need it at the same time
            if (!isBuilt(sources, absolute)) {
                compileAll(sources, absolute);
            }
        }
        return absolute;
    }

    private static void compileAll(Path sources, Path absolute)
            throws IOException, InterruptedException {
        compile(absolute, CUDA, sources.resolve("libcuda_double.c"));
        compile(absolute, CUDART, sources.resolve("libcudart_double.c"), absolute.resolve(CUDA));
        compile(
                absolute,
                NCCL,
                sources.resolve("libnccl_double.c"),
                sources.resolve("nccl_double_calls.c"),
                sources.resolve("nccl_double_init.c"),
                sources.resolve("nccl_double_ops.c"),
                absolute.resolve(CUDART));
    }

    /** Returns whether the library that is made last is newer than every file it is made of. */
    private static boolean isBuilt(Path sources, Path folder) throws IOException {
        Path library = folder.resolve(NCCL);
        if (!Files.exists(library)) {
            return false;
        }
        FileTime built = Files.getLastModifiedTime(library);
        try (DirectoryStream<Path> files = Files.newDirectoryStream(sources)) {
            for (Path file : files) {
                if (Files.getLastModifiedTime(file).compareTo(built) >= 0) {
                    return false;
                }
            }
        }
        return true;
    }

    private static void compile(Path folder, String name, Path... sources)
            throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of("gcc", "-std=c11", "-O2", "-fwrapv"));
        command.addAll(List.of("-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"));
        command.addAll(List.of("-fvisibility=hidden", "-Wl,-soname," + name));
        command.addAll(List.of("-o", folder.resolve(name).toString()));
        for (Path source : sources) {
            command.add(source.toString());
        }
        Path log = folder.resolve(name + ".log");
        Process process =
                new ProcessBuilder(command)
                        .redirectErrorStream(true)
                        .redirectOutput(log.toFile())
                        .start();
        if (!process.waitFor(60, TimeUnit.SECONDS) || process.exitValue() != 0) {
            process.destroyForcibly();
            String text = Files.readString(log, StandardCharsets.UTF_8);
            // a compiler that is there must not fail: that would hide all the tests
            throw new AssertionError(String.join(" ", command) + "\n" + text);
        }
    }

    /**
     * Loads the double into this process.
     *
     * @throws SkipException if it cannot be built
     */
    public static synchronized void load() {
        if (!loaded) {
            load(build());
        }
    }

    /**
     * Loads a double that has been built into this process.
     *
     * @param libraries the folder with the libraries
     */
    public static synchronized void load(Path libraries) {
        for (String name : new String[] {CUDA, CUDART, NCCL}) {
            open(libraries.resolve(name));
        }
        try {
            for (String name : new String[] {"jnicudart", "jninccl"}) {
                String file = "/org/bytedeco/cuda/" + Loader.getPlatform() + "/lib" + name + ".so";
                open(Loader.cacheResource(cudart.class, file).toPath());
            }
        } catch (IOException e) {
            throw new AssertionError(e);
        }
        folder = libraries;
        loaded = true;
    }

    private static NativeLibrary open(Path file) {
        Map<String, Object> options = Map.of(Library.OPTION_OPEN_FLAGS, OPEN_FLAGS);
        NativeLibrary library = NativeLibrary.getInstance(file.toString(), options);
        LIBRARIES.add(library);
        return library;
    }

    /** Returns how often a function was called, such as {@code ncclAllReduce}. */
    static long calls(String function) {
        return cudart("tp_double_calls").invokeLong(new Object[] {function});
    }

    /**
     * Lets tensors of the CPU take the path of tensors of a GPU: what the ranks compute takes the
     * place of their kernels, and where a GPU's stream would wait, the double holds the thread.
     *
     * @param inStreams whether they do
     */
    public static void computeInStreams(boolean inStreams) {
        load();
        cudart("tp_double_set_inline").invokeVoid(new Object[] {inStreams ? 1 : 0});
        NcclCommunicator.orderOnStream(inStreams);
    }

    /**
     * Returns how often a thread of the host has waited for a device: by a function of CUDA, or for
     * an operation of NCCL.
     *
     * @return the number of calls in this process
     */
    public static long hostWaits() {
        return calls("cudaStreamSynchronize")
                + calls("cudaEventSynchronize")
                + calls("cudaDeviceSynchronize")
                + calls("cudaMemcpy")
                + NcclWork.getHostWaits();
    }

    /**
     * Returns how often streams were made to wait for an event: twice in an operation.
     *
     * @return the number of calls in this process
     */
    public static long streamWaits() {
        return calls("cudaStreamWaitEvent");
    }

    /** Returns whether any thread has ever been set to a GPU, which since CUDA 12 has its price. */
    static boolean hasContext(int device) {
        return LIBRARIES
                        .get(0)
                        .getFunction("tp_double_has_context")
                        .invokeInt(new Object[] {device})
                != 0;
    }

    static void setVersion(int version) {
        nccl("tp_double_set_version").invokeVoid(new Object[] {version});
    }

    static void setDevices(int count) {
        cudart("tp_double_set_devices").invokeVoid(new Object[] {count});
    }

    static void setReachesHostMemory(boolean reaches) {
        cudart("tp_double_set_pageable").invokeVoid(new Object[] {reaches ? 1 : 0});
    }

    /** Lets a rank have an error after this many more operations. */
    static void injectError(int rank, long after, int error) {
        nccl("tp_double_inject_async_error")
                .invokeVoid(new Object[] {rank, new NativeLong(after), error});
    }

    /** Copies floats on the null stream of the thread's current GPU, after a while. */
    static void copyLater(long to, long from, long count, long millis) {
        cudart("tp_double_copy_later")
                .invokeVoid(
                        new Object[] {
                            new Pointer(to),
                            new Pointer(from),
                            new NativeLong(count),
                            new NativeLong(millis)
                        });
    }

    /** Loads a kernel on the thread's current GPU, for which it waits for all that runs there. */
    static void loadKernel() {
        cudart("tp_double_load_kernel").invokeVoid(new Object[0]);
    }

    /**
     * Returns what is there.
     *
     * @return the numbers of communicators, streams, events and pieces of device memory, and of
     *     threads that have used GPU 0 because they never said where they work
     */
    public static List<Long> live() {
        return List.of(
                nccl("tp_double_live_comms").invokeLong(new Object[0]),
                cudart("tp_double_live_streams").invokeLong(new Object[0]),
                cudart("tp_double_live_events").invokeLong(new Object[0]),
                cudart("tp_double_live_allocations").invokeLong(new Object[0]),
                cudart("tp_double_strays").invokeLong(new Object[0]));
    }

    /**
     * Returns what is there when the threads of destroyed streams have ended.
     *
     * @return as {@link #live()}
     * @throws InterruptedException if the time of the test is over
     */
    public static List<Long> settled() throws InterruptedException {
        for (int i = 0; i < 1000 && live().get(1) > 0; i++) {
            Thread.sleep(10);
        }
        return live();
    }

    private static Function cudart(String name) {
        return LIBRARIES.get(1).getFunction(name);
    }

    private static Function nccl(String name) {
        return LIBRARIES.get(2).getFunction(name);
    }
}
