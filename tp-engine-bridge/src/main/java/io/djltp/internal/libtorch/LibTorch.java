package io.djltp.internal.libtorch;

import ai.djl.engine.Engine;
import ai.djl.engine.EngineException;
import ai.djl.pytorch.jni.LibUtils;

import org.bytedeco.javacpp.Loader;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;

/**
 * Binds the JavaCPP PyTorch preset to the libtorch that DJL's PyTorch engine has loaded, so that
 * both work on the same tensors in the same process.
 *
 * <p>DJL decides which libtorch that is: the one of its native Maven artifact, or the one that
 * {@code PYTORCH_LIBRARY_PATH} names. The preset never brings a second one. Both must be of the
 * same version, because the preset calls C++ symbols whose layout changes between versions.
 */
public final class LibTorch {

    private static final Logger logger = LoggerFactory.getLogger(LibTorch.class);

    private static final String ENGINE = "PyTorch";
    private static final String MEMORY_LIMIT = "org.bytedeco.javacpp.maxPhysicalBytes";

    /** Libtorch's libraries. */
    private static final String[] LIBRARIES = {"c10", "torch_cpu", "torch"};

    private static volatile @Nullable Engine engine;

    private LibTorch() {}

    /**
     * Loads DJL's PyTorch engine and binds the preset to its libtorch. Later calls return at once.
     *
     * @return DJL's PyTorch engine
     * @throws EngineException if the engine is missing, another engine was chosen, the versions
     *     differ, a second libtorch is found in the process or JNA's library cannot be loaded; the
     *     message says what to do
     */
    public static Engine load() {
        Engine loaded = engine;
        return loaded == null ? loadOnce() : loaded;
    }

    /** Tells JavaCPP not to give up above four times the Java heap, and ask at every pointer. */
    public static void liftMemoryLimit() {
        if (System.getProperty(MEMORY_LIMIT) == null) {
            System.setProperty(MEMORY_LIMIT, "0");
        }
    }

    private static synchronized Engine loadOnce() {
        Engine loaded = engine;
        if (loaded == null) {
            liftMemoryLimit();
            checkEngine();
            loaded = Engine.getEngine(ENGINE);
            checkVersion(loaded.getVersion(), presetVersion());
            LibTorchFunctions.check();
            bind(Path.of(LibUtils.getLibtorchPath()));
            checkSingle(loadedLibraries());
            engine = loaded;
        }
        return loaded;
    }

    private static void checkEngine() {
        try {
            checkEngine(Engine.getDefaultEngineName(), Engine.getAllEngines());
        } catch (ExceptionInInitializerError e) {
            // a default engine that is not even on the class path
            Throwable reason = e.getCause() == null ? e : e.getCause();
            throw new EngineException(
                    ("DJL cannot start: %s. Tensor parallelism runs on PyTorch only: set"
                                    + " the system property ai.djl.default_engine=PyTorch or the"
                                    + " environment variable DJL_DEFAULT_ENGINE=PyTorch.")
                            .formatted(reason.getMessage()),
                    e);
        }
    }

    /**
     * Checks that DJL works with its PyTorch engine.
     *
     * @param defaultEngine the name of DJL's default engine, or {@code null} if there is none
     * @param engines the names of all engines on the class path
     */
    static void checkEngine(@Nullable String defaultEngine, Set<String> engines) {
        if (!engines.contains(ENGINE)) {
            throw new EngineException(
                    ("DJL's PyTorch engine is not on the class path (found: %s). Add"
                                    + " ai.djl.pytorch:pytorch-engine, pytorch-jni and"
                                    + " pytorch-native-cpu.")
                            .formatted(engines));
        }
        if (!ENGINE.equals(defaultEngine)) {
            throw new EngineException(
                    ("DJL's default engine is %s, but tensor parallelism runs on PyTorch only. Set"
                                    + " the system property ai.djl.default_engine=PyTorch or the"
                                    + " environment variable DJL_DEFAULT_ENGINE=PyTorch.")
                            .formatted(defaultEngine));
        }
    }

    /**
     * Checks that DJL's libtorch and the preset are of one version.
     *
     * @param djl the version of DJL's libtorch, such as {@code 2.7.1}
     * @param preset the version of the preset, such as {@code 2.7.1-1.5.12}
     */
    static void checkVersion(String djl, String preset) {
        String expected = preset.split("-", 2)[0];
        // a version from PYTORCH_LIBRARY_PATH may carry a build suffix: 2.7.1+cu128, 2.7.1-20250605
        String actual = djl.split("[-+]", 2)[0];
        if (!expected.equals(actual)) {
            throw new EngineException(
                    ("DJL has loaded libtorch %s, but the JavaCPP PyTorch preset on the class path"
                                    + " (%s) needs %s. Use pytorch-native %s, or set"
                                    + " PYTORCH_LIBRARY_PATH to a libtorch %s (and"
                                    + " PYTORCH_VERSION=%s).")
                            .formatted(djl, preset, expected, expected, expected, expected));
        }
    }

    /**
     * Checks that the process holds one copy of libtorch.
     *
     * @param libraries the distinct files of {@code libtorch_cpu} and {@code libc10} in the process
     */
    static void checkSingle(Set<String> libraries) {
        for (String name : List.of("libtorch_cpu.", "libc10.")) {
            List<String> copies =
                    libraries.stream()
                            .filter(file -> Path.of(file).getFileName().toString().startsWith(name))
                            .toList();
            if (copies.size() > 1) {
                throw new EngineException(
                        ("The process holds %s copies of libtorch: %s. Remove"
                                        + " org.bytedeco:pytorch-platform or other artifacts that"
                                        + " bring their own, and load LibTorch before them.")
                                .formatted(copies.size(), copies));
            }
        }
    }

    private static String presetVersion() {
        try {
            return Loader.getVersion("org.bytedeco", "pytorch");
        } catch (IOException e) {
            throw new EngineException("The JavaCPP PyTorch preset is not on the class path.", e);
        }
    }

    private static void bind(Path folder) {
        for (String name : LIBRARIES) {
            Path file = folder.resolve(System.mapLibraryName(name));
            if (!Files.exists(file)) {
                throw new EngineException("DJL's libtorch has no " + file);
            }
        }
        try {
            PresetLibraries.load(folder);
        } catch (IOException e) {
            throw new EngineException(
                    ("The library of the JavaCPP PyTorch preset cannot be unpacked into JavaCPP's"
                                    + " cache: %s. Another folder can be named by the system"
                                    + " property org.bytedeco.javacpp.cachedir.")
                            .formatted(e.getMessage()),
                    e);
        } catch (UnsatisfiedLinkError e) {
            throw new EngineException(
                    ("The JavaCPP PyTorch preset could not be loaded against the libtorch in %s."
                                    + " Is org.bytedeco:pytorch with the classifier of this"
                                    + " platform (%s) on the class path?")
                            .formatted(folder, Loader.getPlatform()),
                    e);
        }
        logger.debug("JavaCPP PyTorch preset bound to libtorch in {}", folder);
    }

    /** Returns the libtorch files mapped into this process; empty where that cannot be asked. */
    static Set<String> loadedLibraries() {
        Path maps = Path.of("/proc/self/maps");
        if (!Files.isReadable(maps)) {
            return Set.of();
        }
        try {
            return Files.readAllLines(maps).stream()
                    .filter(line -> line.matches(".*/(libtorch_cpu|libc10)[.][^/]*"))
                    .map(line -> line.substring(line.indexOf('/')))
                    .collect(Collectors.toCollection(TreeSet::new));
        } catch (IOException e) {
            logger.debug("{} cannot be read", maps, e);
            return Set.of();
        }
    }
}
