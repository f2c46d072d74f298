package io.djltp.internal.libtorch;

import ai.djl.engine.Engine;
import ai.djl.engine.EngineException;
import ai.djl.pytorch.jni.LibUtils;
import ai.djl.util.Utils;

import io.djltp.collective.ForkedJvm;
import io.djltp.internal.torch.OtherEngineProvider;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;

/** The preset is bound to the one libtorch that DJL has loaded, or the error says why not. */
public class LibTorchTest {

    private static final String SUM = "sum=12.0"; // six elements 1 x (1 + 1)

    @Test
    public void theProcessHoldsOneLibtorch() {
        Engine engine = LibTorch.load();
        Assert.assertEquals(engine.getEngineName(), "PyTorch");
        Assert.assertSame(LibTorch.load(), engine);
        Set<String> libraries = LibTorch.loadedLibraries();
        if (!Files.isReadable(Path.of("/proc/self/maps"))) {
            throw new SkipException("this system does not tell what is loaded");
        }
        String folder = LibUtils.getLibtorchPath();
        Assert.assertEquals(
                libraries,
                Set.of(
                        Path.of(folder, System.mapLibraryName("torch_cpu")).toString(),
                        Path.of(folder, System.mapLibraryName("c10")).toString()));
    }

    @Test
    public void aMissingEngineIsExplained() {
        LibTorch.checkEngine("PyTorch", Set.of("PyTorch", "MXNet"));
        assertError(
                () -> LibTorch.checkEngine("MXNet", Set.of("MXNet")),
                "DJL's PyTorch engine is not on the class path (found: [MXNet])",
                "ai.djl.pytorch:pytorch-engine, pytorch-jni and pytorch-native-cpu");
        assertError(
                () -> LibTorch.checkEngine(null, Set.of()), "not on the class path (found: [])");
        assertError(
                () -> LibTorch.checkEngine("MXNet", Set.of("MXNet", "PyTorch")),
                "DJL's default engine is MXNet",
                "ai.djl.default_engine=PyTorch",
                "DJL_DEFAULT_ENGINE=PyTorch");
    }

    @Test
    public void twoVersionsAreRefused() {
        LibTorch.checkVersion("2.7.1", "2.7.1-1.5.12");
        LibTorch.checkVersion("2.7.1+cu128", "2.7.1-1.5.12");
        LibTorch.checkVersion("2.7.1-20250605", "2.7.1-1.5.13-SNAPSHOT");
        for (String other : new String[] {"2.7.0", "2.7.10", "2.7", "1.13.1+cu117"}) {
            assertError(
                    () -> LibTorch.checkVersion(other, "2.7.1-1.5.12"),
                    "DJL has loaded libtorch " + other + ",",
                    "preset on the class path (2.7.1-1.5.12) needs 2.7.1.",
                    "PYTORCH_LIBRARY_PATH",
                    "PYTORCH_VERSION=2.7.1");
        }
    }

    @Test
    public void twoCopiesAreRefused() {
        LibTorch.checkSingle(Set.of());
        LibTorch.checkSingle(Set.of("/a/libtorch_cpu.so", "/a/libc10.so"));
        LibTorch.checkSingle(Set.of("/a/libtorch_cpu.so", "/b/libc10.so", "/a/libc10_cuda.so"));
        assertError(
                () -> LibTorch.checkSingle(Set.of("/a/libtorch_cpu.so", "/b/libtorch_cpu.so")),
                "2 copies of libtorch",
                "/a/libtorch_cpu.so",
                "/b/libtorch_cpu.so",
                "org.bytedeco:pytorch-platform");
        assertError(
                () -> LibTorch.checkSingle(Set.of("/a/libc10.so", "/b/libc10.so")),
                "2 copies of libtorch");
    }

    /** The calls that may be a program's first. */
    @DataProvider
    public static Object[][] beginnings() {
        return new Object[][] {{"load"}, {"javacpp-first"}, {"threads-first"}, {"mode-first"}};
    }

    @Test(dataProvider = "beginnings", timeOut = 90_000)
    public void whateverComesFirstItIsOneLibtorch(String first) throws Exception {
        ForkedJvm jvm = jvm().option("-Dorg.bytedeco.javacpp.logger.debug=true");
        String output = assertLoaded(jvm, first);
        // it says what it looks for
        Assert.assertTrue(output.contains("Loading class org.bytedeco.pytorch.Tensor"));
        Assert.assertFalse(output.contains("cublas"), "a search for CUDA's libraries");
    }

    private static ForkedJvm jvm() {
        return new ForkedJvm().asUsual();
    }

    /** The folder that DJL has unpacked, named as the libtorch of the user. */
    @Test(timeOut = 90_000)
    public void aLibtorchOfTheUsersOwnIsBound() throws Exception {
        LibTorch.load();
        assertLoaded(jvm().environment("PYTORCH_LIBRARY_PATH", LibUtils.getLibtorchPath()), "load");
    }

    @Test(timeOut = 90_000)
    public void anotherDefaultEngineEndsInAClearError() throws Exception {
        Path folder = Files.createTempDirectory("engine");
        Path services = Files.createDirectories(folder.resolve("META-INF").resolve("services"));
        Path file = services.resolve("ai.djl.engine.EngineProvider");
        try {
            Files.writeString(file, OtherEngineProvider.class.getName());
            assertFails(
                    jvm().classPath(folder).option("-Dai.djl.default_engine=Other"),
                    "load",
                    "ai.djl.engine.EngineException: DJL's default engine is Other, but tensor"
                            + " parallelism runs on PyTorch only.");
            // with two engines on the class path, naming PyTorch is enough
            jvm().classPath(folder)
                    .environment("DJL_DEFAULT_ENGINE", "PyTorch")
                    .succeed(LibTorchProbe.class, "load");
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    private static String assertFails(ForkedJvm jvm, String way, String part) throws Exception {
        String output = jvm.run(LibTorchProbe.class, way).outputOf(1);
        Assert.assertTrue(output.contains(part), output);
        return output;
    }

    @Test(timeOut = 90_000)
    public void anUnknownDefaultEngineEndsInAClearError() throws Exception {
        assertFails(
                jvm().option("-Dai.djl.default_engine=MXNet"),
                "load",
                "ai.djl.engine.EngineException: DJL cannot start: Unknown default engine: MXNet."
                        + " Tensor parallelism runs on PyTorch only: set the system property"
                        + " ai.djl.default_engine=PyTorch");
    }

    /** As where JNA's library cannot be unpacked: each call says why, and not only the first. */
    @Test(timeOut = 90_000)
    public void withoutJnasLibraryEveryCallSaysWhy() throws Exception {
        String error =
                "ai.djl.engine.EngineException: JNA, which calls functions of libtorch, cannot load"
                        + " its own library: ";
        String output =
                assertFails(
                        jvm().option("-Djna.nounpack=true").option("-Djna.nosys=true"),
                        "twice",
                        "first=" + error);
        Assert.assertTrue(output.contains("Exception in thread \"main\" " + error), output);
        String[] said = output.split("Could not find JNA native support", -1);
        Assert.assertTrue(said.length > 2, output);
        Assert.assertTrue(output.contains("jna.tmpdir"), output);
    }

    private static String assertLoaded(ForkedJvm jvm, String way) throws Exception {
        LibTorch.load();
        String folder = LibUtils.getLibtorchPath();
        String output = jvm.succeed(LibTorchProbe.class, way);
        Refusals.assertContains(output, SUM, "path=" + folder);
        if (Files.isReadable(Path.of("/proc/self/maps"))) {
            Path c10 = Path.of(folder, System.mapLibraryName("c10"));
            Path cpu = Path.of(folder, System.mapLibraryName("torch_cpu"));
            Assert.assertTrue(output.contains("libraries=[" + c10 + ", " + cpu + "]"), output);
        }
        return output;
    }

    private static void assertError(Assert.ThrowingRunnable call, String... parts) {
        Refusals.expect(EngineException.class, call, parts);
    }
}
