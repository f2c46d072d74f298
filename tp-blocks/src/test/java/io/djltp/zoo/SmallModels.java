package io.djltp.zoo;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.ParameterStore;
import ai.djl.translate.ArgumentsUtil;
import ai.djl.translate.TranslateException;

import io.djltp.plan.Plan;
import io.djltp.plan.Style;
import io.djltp.plan.TensorParallel;

import org.testng.Assert;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;

/** Model folders with random weights, and how they are loaded. */
final class SmallModels {

    static final Shape INPUT = new Shape(1, 7);

    private SmallModels() {}

    /** Makes networks of 7 features, by the argument {@code network}. */
    public static final class Factory extends ParallelBlockFactory {

        private static final long serialVersionUID = 1L;

        /** {@inheritDoc} */
        @Override
        protected Block newNetwork(Path folder, Map<String, ?> arguments) {
            switch (ArgumentsUtil.stringValue(arguments, "network", "two layers")) {
                case "plain": // no layer that can be cut
                    return linear(5);
                case "planned": // blocks of DJL that a plan makes parallel
                    return TensorParallel.parallelize(
                            sequence(linear(13), Activation.tanhBlock(), linear(5)),
                            Plan.builder()
                                    .add("01Linear", Style.column())
                                    .add("03Linear", Style.row())
                                    .build());
                case "heads": // three of them
                    return sequence(linear(6), map(x -> x.expandDims(1)), attention(6, 3).build());
                case "values": // which are not those of the file
                    Block block = network(13);
                    block.initialize(NDManager.newBaseManager(), DataType.FLOAT32, INPUT);
                    return block;
                default:
                    return network(ArgumentsUtil.intValue(arguments, "hidden", 13));
            }
        }

        /** {@inheritDoc} */
        @Override
        protected Shape[] getInputShapes(Map<String, ?> arguments) {
            return new Shape[] {INPUT};
        }
    }

    /** Returns two layers that are cut, 7 to 13 to 5 features. */
    static Block network(int hidden) {
        return sequence(column(hidden), Activation.tanhBlock(), row(5));
    }

    static ModelFolder.Builder folder(Block network) {
        return ModelFolder.builder().setNetwork(network).setBlockFactory(Factory.class);
    }

    /** Writes a folder with a network and returns what the network makes of a batch. */
    static float[] save(Path folder, String network, float[] batch) throws IOException {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            Block block = new Factory().newNetwork(folder, Map.of("network", network));
            block.initialize(manager, DataType.FLOAT32, INPUT);
            folder(block).optArgument("network", network).build().save(folder);
            NDList input = new NDList(manager.create(batch, new Shape(batch.length / 7, 7)));
            return block.forward(new ParameterStore(manager, false), input, false)
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

    static float[] predict(Predictor<NDList, NDList> predictor, float[] batch)
            throws TranslateException {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            NDList input = new NDList(manager.create(batch, new Shape(batch.length / 7, 7)));
            float[] output = predictor.predict(input).singletonOrThrow().toFloatArray();
            Assert.assertEquals(input.head().size(), batch.length); // still the caller's
            return output;
        }
    }

    static float[] predict(ZooModel<NDList, NDList> model, float[] batch)
            throws TranslateException {
        try (Predictor<NDList, NDList> predictor = model.newPredictor()) {
            return predict(predictor, batch);
        }
    }

    static void assertClose(float[] actual, float[] expected) {
        Assert.assertEquals(actual.length, expected.length);
        for (int i = 0; i < actual.length; i++) {
            double bound = 1e-5 * Math.max(1, Math.abs(expected[i]));
            Assert.assertEquals(actual[i], expected[i], bound, "output " + i);
        }
    }
}
