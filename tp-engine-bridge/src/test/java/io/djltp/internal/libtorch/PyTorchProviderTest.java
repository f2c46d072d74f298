package io.djltp.internal.libtorch;

import ai.djl.Device;
import ai.djl.engine.Engine;
import ai.djl.pytorch.jni.LibUtils;
import ai.djl.util.Utils;
import ai.djl.util.cuda.CudaUtils;

import io.djltp.collective.ForkedJvm;
import io.djltp.internal.collective.nccl.NcclDouble;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/** DJL looks for GPUs where there is a driver, and is quiet where there is none. */
public class PyTorchProviderTest {

    private static final String RUNTIME =
            """
            int cudaGetDeviceCount(int *count) { *count = 0; return 35; }
            const char *cudaGetErrorString(int code) { return code ? "no driver" : "none"; }
            """;

    /** Counts GPUs. */
    static final class Count {

        private Count() {}

        public static void main(String[] args) {
            Engine.hasEngine("PyTorch"); // loads the service
            System.out.println("gpus=" + CudaUtils.getGpuCount());
            System.out.println(System.getProperty("ai.djl.util.cuda.fork"));
        }
    }

    @Test(timeOut = 90_000)
    public void aRuntimeWithoutADriverIsNoWarning() throws Exception {
        Path folder = Files.createTempDirectory("cudart");
        try {
            compile(RUNTIME, folder.resolve("libcudart.so"));
            ForkedJvm jvm = jvm().option("-Djna.library.path=" + folder);
            Assert.assertEquals(jvm.succeed(Count.class).strip(), "gpus=0\nnull");
            // without the service DJL warns
            String output =
                    jvm().option("-Djna.library.path=" + folder)
                            .option("-Dai.djl.util.cuda.fork=false")
                            .succeed(Count.class);
            Assert.assertTrue(output.contains("Failed to detect GPU count: no driver"), output);
            Assert.assertTrue(output.endsWith("gpus=0\nfalse\n"), output);
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    @Test(timeOut = 90_000)
    public void withADriverGpusAreCounted() throws Exception {
        Path libraries = NcclDouble.build();
        Path folder = Files.createTempDirectory("cudart");
        try { // by the name that DJL asks for
            Path runtime = libraries.resolve("libcudart.so.12");
            Files.createSymbolicLink(folder.resolve("libcudart.so"), runtime);
            ForkedJvm jvm =
                    jvm().option("-Djna.library.path=" + folder)
                            .environment("LD_LIBRARY_PATH", libraries.toString())
                            .environment("TP_DOUBLE_DEVICES", "3");
            Assert.assertEquals(jvm.succeed(Count.class), "gpus=3\nnull\n");
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    /** Says what a GPU has. */
    static final class Capability {

        private Capability() {}

        public static void main(String[] args) {
            for (int gpu : new int[] {0, 3}) {
                System.out.println(Precision.available(Device.gpu(gpu)));
                System.out.println(Precision.TF32.whyNot(Device.gpu(gpu)).orElse("has it"));
            }
        }
    }

    /** Where the system has no runtime of CUDA, as DJL would look for it, libtorch has its own. */
    @Test(timeOut = 90_000)
    public void libtorchsOwnRuntimeTellsWhatAGpuHas() throws Exception {
        Path libraries = NcclDouble.build();
        Engine.getEngine("PyTorch");
        Path folder = Files.createTempDirectory("torch");
        try {
            try (Stream<Path> files = Files.list(Path.of(LibUtils.getLibtorchPath()))) {
                for (Path file : files.toList()) {
                    Files.createSymbolicLink(folder.resolve(file.getFileName()), file);
                }
            }
            String runtime = libraries.resolve("libcudart.so.12").toString();
            Path library = folder.resolve("libtorch_cuda.so");
            String path = "-Wl,-rpath=" + libraries;
            compile("", library, "-Wl,--no-as-needed", runtime, path);
            String output =
                    new ForkedJvm()
                            .option("-Dorg.slf4j.simpleLogger.defaultLogLevel=error") // not DJL's
                            .environment("PYTORCH_LIBRARY_PATH", folder.toString())
                            .environment("LD_LIBRARY_PATH", libraries.toString())
                            .environment("TP_DOUBLE_DEVICES", "3")
                            .succeed(Capability.class);
            String needs = "needs a GPU of compute capability 8.0 or above, and ";
            Assert.assertEquals(
                    output,
                    "[float32, float16]\n"
                            + needs
                            + "gpu(0) has 7.5\n[float32]\n"
                            + needs
                            + "libtorch does not find out that of gpu(3) (cudaDeviceGetAttribute"
                            + " failed: error 101)\n");
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    private static ForkedJvm jvm() {
        return new ForkedJvm().option("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
    }

    private static void compile(String text, Path library, String... more)
            throws IOException, InterruptedException {
        Path source = Files.writeString(library.resolveSibling("source.c"), text);
        List<String> command = new ArrayList<>(List.of("gcc", "-shared", "-fPIC"));
        command.addAll(List.of("-o", library.toString(), source.toString()));
        command.addAll(List.of(more));
        try {
            int code = new ProcessBuilder(command).inheritIO().start().waitFor();
            Files.delete(source);
            Assert.assertEquals(code, 0);
        } catch (IOException e) {
            throw new SkipException("There is no gcc: " + e.getMessage());
        }
    }
}
