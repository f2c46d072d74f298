package io.djltp.zoo;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.BlockFactory;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.ParameterStore;

import org.testng.Assert;

import java.io.IOException;
import java.nio.file.Path;

/** Model folders with random weights, and how they are loaded. */
final class SmallModels {

    private SmallModels() {}

    /** Writes a folder and returns what the network makes of a batch. */
    static float[] save(
            Path folder, Block network, Class<? extends BlockFactory> factory, float[] batch)
            throws IOException {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            network.initialize(manager, DataType.FLOAT32, TwoLayersFactory.INPUT);
            ModelFolder.builder().setNetwork(network).setBlockFactory(factory).build().save(folder);
            NDArray input = manager.create(batch, new Shape(batch.length / 7, 7));
            return network.forward(new ParameterStore(manager, false), new NDList(input), false)
                    .singletonOrThrow()
                    .toFloatArray();
        }
    }

    static Criteria.Builder<NDList, NDList> criteria(Path folder) {
        return Criteria.builder()
                .setTypes(NDList.class, NDList.class)
                .optModelPath(folder)
                .optDevice(Device.cpu());
    }

    static ZooModel<NDList, NDList> load(Path folder, Object degree)
            throws IOException, ModelNotFoundException, MalformedModelException {
        return criteria(folder).optArgument(TensorParallelDegree.NAME, degree).build().loadModel();
    }

    static float[] batch(int rows) {
        float[] batch = new float[7 * rows];
        for (int i = 0; i < batch.length; i++) {
            batch[i] = (float) Math.sin(i + 1);
        }
        return batch;
    }

    static void assertClose(float[] actual, float[] expected) {
        Assert.assertEquals(actual.length, expected.length);
        for (int i = 0; i < actual.length; i++) {
            double bound = 1e-5 * Math.max(1, Math.abs(expected[i]));
            Assert.assertEquals(actual[i], expected[i], bound, "output " + i);
        }
    }
}
