package io.djltp.internal.libtorch;

import ai.djl.engine.Engine;
import ai.djl.util.Utils;
import ai.djl.util.cuda.CudaUtils;

import io.djltp.collective.ForkedJvm;
import io.djltp.internal.collective.nccl.NcclDouble;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

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
            compile(folder);
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

    private static ForkedJvm jvm() {
        return new ForkedJvm().option("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
    }

    private static void compile(Path folder) throws IOException, InterruptedException {
        Path source = Files.writeString(folder.resolve("cudart.c"), RUNTIME);
        String library = folder.resolve("libcudart.so").toString();
        try {
            int code =
                    new ProcessBuilder("gcc", "-shared", "-fPIC", "-o", library, source.toString())
                            .inheritIO()
                            .start()
                            .waitFor();
            Assert.assertEquals(code, 0);
        } catch (IOException e) {
            throw new SkipException("There is no gcc: " + e.getMessage());
        }
    }
}
