package io.djltp.torch;

import ai.djl.Device;

import io.djltp.internal.libtorch.ProcessorArithmetic;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/** A precision has a name, and is had where the processor has its instructions. */
public class PrecisionTest {

    @Test
    public void aNameGivesThePrecision() {
        for (Precision each : Precision.values()) {
            Assert.assertSame(Precision.of(each.toString()), each);
        }
        Assert.assertEquals(
                Refusals.throwsArgument(() -> Precision.of("bf16")),
                "The precision must be one of float32, bfloat16, tf32, float16, not bf16");
    }

    @Test
    public void arithmeticOfGpusIsRefusedOnAProcessor() {
        Precision.FLOAT32.check(Device.cpu());
        for (Precision each : List.of(Precision.TF32, Precision.FLOAT16)) {
            Refusals.throwsArgument(
                    () -> each.check(Device.cpu()),
                    "The precision "
                            + each
                            + " is arithmetic of GPUs, and the device is cpu(). It is not emulated;"
                            + " use float32");
        }
    }

    @Test
    public void productsOfFloat32AreRoundedOnGpusOnly() {
        Refusals.throwsArgument(
                () -> Float32Products.set(Precision.TF32, Device.cpu()),
                "tf32 is arithmetic of GPUs");
        Refusals.throwsArgument(() -> Float32Products.set(Precision.TF32), "no device was given");
        Assert.assertEquals(Float32Products.get(), Precision.FLOAT32);
        Precision.TF32.allow(Device.cpu());
        try {
            Float32Products.set(Precision.TF32, Device.cpu());
            Assert.assertEquals(Float32Products.get(), Precision.TF32);
        } finally {
            Precision.TF32.forget(Device.cpu());
            Float32Products.set(Precision.FLOAT32, Device.cpu());
        }
        Assert.assertEquals(Float32Products.get(), Precision.FLOAT32);
        Refusals.throwsArgument(() -> Float32Products.set(Precision.FLOAT16, Device.cpu()));
    }

    /** Linux lists what libtorch asks the processor for. */
    @Test
    public void bfloat16IsHadWhereTheProcessorHasIt() throws IOException {
        Path info = Path.of("/proc/cpuinfo");
        if (!Files.isReadable(info)) {
            throw new SkipException("there is no " + info);
        }
        List<String> words = List.of(Files.readString(info).split("\\s+"));
        boolean has = words.contains("avx512_bf16") || words.contains("amx_bf16");
        Assert.assertEquals(Precision.BFLOAT16.whyNot(Device.cpu()).isEmpty(), has);
        Assert.assertEquals(
                Precision.available(Device.cpu()),
                has ? List.of(Precision.FLOAT32, Precision.BFLOAT16) : List.of(Precision.FLOAT32));
    }

    /** oneDNN would do without the instructions, and emulate. */
    @Test
    public void bfloat16IsRefusedWhereOneDnnIsKeptFromIt() {
        for (String set : List.of("AVX2", "AVX512_CORE", "AVX512_CORE_VNNI")) {
            Assert.assertEquals(
                    ProcessorArithmetic.limit(Map.of("DNNL_MAX_CPU_ISA", set)).orElseThrow(),
                    "is switched off by DNNL_MAX_CPU_ISA=" + set);
        }
        for (String set : List.of("ALL", "AVX512_CORE_BF16", "avx512_core_amx", "AVX10_1_512")) {
            Assert.assertTrue(
                    ProcessorArithmetic.limit(Map.of("ONEDNN_MAX_CPU_ISA", set)).isEmpty(), set);
        }
        Assert.assertTrue(ProcessorArithmetic.limit(Map.of()).isEmpty());
    }

    @Test
    public void roundingIsHalfAUnitOfTheLastPlace() {
        Assert.assertEquals(Precision.BFLOAT16.roundingError(), 1.0 / 256);
        Assert.assertEquals(Precision.FLOAT32.roundingError(), 1.0 / (1 << 24));
    }

    /** Where libtorch has no CUDA, or no such GPU, that is an answer. */
    @Test
    public void aGpuOfWhichLibtorchKnowsNothingIsToldAsSuch() {
        Device gpu = Device.gpu(77);
        Assert.assertEquals(Precision.available(gpu), List.of(Precision.FLOAT32));
        String why = Precision.BFLOAT16.whyNot(gpu).orElseThrow();
        Assert.assertTrue(
                why.startsWith(
                        "needs a GPU of compute capability 8.0 or above, and libtorch does not find"
                                + " out that of gpu(77) ("),
                why);
        Refusals.throwsArgument(() -> Precision.FLOAT16.check(gpu));
    }
}
