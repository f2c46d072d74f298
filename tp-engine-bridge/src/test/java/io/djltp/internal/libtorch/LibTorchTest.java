package io.djltp.internal.libtorch;

import ai.djl.engine.Engine;
import ai.djl.engine.EngineException;
import ai.djl.pytorch.jni.LibUtils;

import io.djltp.collective.ForkedJvm;
import io.djltp.internal.torch.OtherEngineProvider;

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
        LibTorch.load();
        String folder = LibUtils.getLibtorchPath();
        ForkedJvm.Result result =
                new ForkedJvm()
                        .asUsual()
                        .option("-Dorg.bytedeco.javacpp.logger.debug=true")
                        .run(LibTorchProbe.class, first);
        assertLoaded(result, folder);
        // it says what it looks for
        Assert.assertTrue(result.output().contains("Loading class org.bytedeco.pytorch.Tensor"));
        Assert.assertFalse(result.output().contains("cublas"), "a search for CUDA's libraries");
    }

    /** The folder that DJL has unpacked, named as the libtorch of the user. */
    @Test(timeOut = 90_000)
    public void aLibtorchOfTheUsersOwnIsBound() throws Exception {
        LibTorch.load();
        String folder = LibUtils.getLibtorchPath();
        ForkedJvm.Result result =
                new ForkedJvm()
                        .asUsual()
                        .environment("PYTORCH_LIBRARY_PATH", folder)
                        .run(LibTorchProbe.class, "load");
        assertLoaded(result, folder);
    }

    @Test(timeOut = 90_000)
    public void anotherDefaultEngineEndsInAClearError() throws Exception {
        Path folder = Files.createTempDirectory("engine");
        Path services = Files.createDirectories(folder.resolve("META-INF").resolve("services"));
        Path file = services.resolve("ai.djl.engine.EngineProvider");
        try {
            Files.writeString(file, OtherEngineProvider.class.getName());
            ForkedJvm.Result result =
                    new ForkedJvm()
                            .asUsual()
                            .classPath(folder)
                            .option("-Dai.djl.default_engine=Other")
                            .run(LibTorchProbe.class, "load");
            Assert.assertEquals(result.exitCode(), 1, result.output());
            Assert.assertTrue(
                    result.output()
                            .contains(
                                    "ai.djl.engine.EngineException: DJL's default engine is Other,"
                                            + " but tensor parallelism runs on PyTorch only."),
                    result.output());
            // with two engines on the class path, naming PyTorch is enough
            result =
                    new ForkedJvm()
                            .asUsual()
                            .classPath(folder)
                            .environment("DJL_DEFAULT_ENGINE", "PyTorch")
                            .run(LibTorchProbe.class, "load");
            Assert.assertEquals(result.exitCode(), 0, result.output());
        } finally {
            Files.delete(file);
            Files.delete(services);
            Files.delete(services.getParent());
            Files.delete(folder);
        }
    }

    @Test(timeOut = 90_000)
    public void anUnknownDefaultEngineEndsInAClearError() throws Exception {
        ForkedJvm.Result result =
                new ForkedJvm()
                        .asUsual()
                        .option("-Dai.djl.default_engine=MXNet")
                        .run(LibTorchProbe.class, "load");
        Assert.assertEquals(result.exitCode(), 1, result.output());
        Assert.assertTrue(
                result.output()
                        .contains(
                                "ai.djl.engine.EngineException: DJL cannot start: Unknown default"
                                        + " engine: MXNet. Tensor parallelism runs on PyTorch only:"
                                        + " set the system property ai.djl.default_engine=PyTorch"),
                result.output());
    }

    /** As where JNA's library cannot be unpacked: each call says why, and not only the first. */
    @Test(timeOut = 90_000)
    public void withoutJnasLibraryEveryCallSaysWhy() throws Exception {
        ForkedJvm.Result result =
                new ForkedJvm()
                        .asUsual()
                        .option("-Djna.nounpack=true")
                        .option("-Djna.nosys=true")
                        .run(LibTorchProbe.class, "twice");
        Assert.assertEquals(result.exitCode(), 1, result.output());
        String error =
                "EngineException: JNA, which calls functions of libtorch, cannot load its own"
                        + " library: ";
        Assert.assertTrue(result.output().contains("first=ai.djl.engine." + error));
        Assert.assertTrue(
                result.output().contains("Exception in thread \"main\" ai.djl.engine." + error),
                result.output());
        String[] said = result.output().split("Could not find JNA native support", -1);
        Assert.assertTrue(said.length > 2, result.output());
        Assert.assertTrue(result.output().contains("jna.tmpdir"), result.output());
    }

    private static void assertLoaded(ForkedJvm.Result result, String folder) {
        Assert.assertEquals(result.exitCode(), 0, result.output());
        Assert.assertTrue(result.output().contains(SUM), result.output());
        Assert.assertTrue(result.output().contains("path=" + folder), result.output());
        if (Files.isReadable(Path.of("/proc/self/maps"))) {
            Path c10 = Path.of(folder, System.mapLibraryName("c10"));
            Path cpu = Path.of(folder, System.mapLibraryName("torch_cpu"));
            Assert.assertTrue(
                    result.output().contains("libraries=[" + c10 + ", " + cpu + "]"),
                    result.output());
        }
    }

    private static void assertError(Assert.ThrowingRunnable call, String... parts) {
        String message = Assert.expectThrows(EngineException.class, call).getMessage();
        for (String part : parts) {
            Assert.assertTrue(message.contains(part), message + " has no \"" + part + "\"");
        }
    }
}
