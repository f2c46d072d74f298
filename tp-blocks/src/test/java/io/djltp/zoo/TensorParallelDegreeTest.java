package io.djltp.zoo;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.util.Utils;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** What a degree means on a machine with GPUs, which a number of them stands for, and without. */
public class TensorParallelDegreeTest {

    private Path folder;

    @BeforeClass
    public void saveModel() throws IOException {
        folder = Files.createTempDirectory("degree");
        SmallModels.save(folder, "two layers", SmallModels.batch(1));
    }

    @AfterClass
    public void delete() {
        Utils.deleteQuietly(folder);
    }

    private int resolve(Map<String, ?> arguments, Device device, int gpus) throws IOException {
        return TensorParallelDegree.resolve(
                TensorParallelDegree.of(arguments, folder),
                device,
                gpus,
                SmallModels.network(13),
                SmallModels.INPUT);
    }

    private int resolve(Object degree, Device device, int gpus) throws IOException {
        return resolve(Map.of(TensorParallelDegree.NAME, degree), device, gpus);
    }

    @Test
    public void maxIsAllGpusFromTheModelsOn() throws IOException {
        assertEquals(resolve("max", Device.gpu(0), 4), 4);
        assertEquals(resolve("max", Device.gpu(1), 4), 3);
        assertEquals(resolve("max", Device.gpu(0), 16), 13); // the model's limit
    }

    @Test
    public void maxOnCpuIsARankForEachProcessor() throws IOException {
        int processors = Runtime.getRuntime().availableProcessors();
        assertEquals(resolve("max", Device.cpu(), 0), Math.min(processors, 13));
    }

    @Test
    public void moreRanksThanGpusAreRefused() throws IOException {
        assertEquals(resolve(4, Device.gpu(0), 4), 4);
        String message =
                expectThrows(IllegalArgumentException.class, () -> resolve(4, Device.gpu(1), 4))
                        .getMessage();
        assertTrue(message.contains("tensor_parallel_degree 4 needs as many GPUs"), message);
        assertTrue(message.contains("choose 1 to 3, or max"), message);
    }

    @Test
    public void ranksOnCpuMayBeMoreThanProcessors() throws IOException {
        assertEquals(resolve(13, Device.cpu(), 0), 13);
    }

    @Test
    public void withoutADegreeItIsOne() throws IOException {
        assertEquals(resolve(Map.of(), Device.cpu(), 0), 1);
    }
}
