package io.djltp.zoo;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.BlockFactory;

import io.djltp.zoo.StoredNetwork.CutLimit;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/**
 * Makes the network of a {@link ModelFolder} with its weights, over as many ranks as the argument
 * {@code tensor_parallel_degree} says, see {@link TensorParallelDegree}. DJL and DJL Serving find a
 * factory by the name of its class, {@code blockFactory} in {@code serving.properties}; it needs a
 * public constructor without parameters.
 *
 * <pre>{@code
 * public final class MyBlockFactory extends ParallelBlockFactory {
 *     protected Block newNetwork(Path folder, Map<String, ?> arguments) {
 *         long classes = ArgumentsUtil.longValue(arguments, "classes");
 *         return ColumnParallelLinear.builder().setUnits(classes).optGatherOutput(true).build();
 *     }
 *
 *     protected Shape[] getInputShapes(Map<String, ?> arguments) {
 *         return new Shape[] {new Shape(1, 128)};
 *     }
 * }
 * }</pre>
 *
 * <p>With degree 1 the block is the network itself, which predictors use at once and which can be
 * trained; with more it is a {@link RankedNetwork}, whose ranks end when the model is closed.
 */
public abstract class ParallelBlockFactory implements BlockFactory {

    private static final long serialVersionUID = 1L;

    private static final Logger logger = LoggerFactory.getLogger(ParallelBlockFactory.class);

    /** Creates a factory. */
    protected ParallelBlockFactory() {}

    /**
     * Makes the network, without values.
     *
     * @param folder the folder of the model
     * @param arguments the arguments of the model, with those of {@code serving.properties}
     * @return the network, whose output is not left cut over the ranks
     * @throws IOException if a file that says how it is built cannot be read
     */
    protected abstract Block newNetwork(Path folder, Map<String, ?> arguments) throws IOException;

    /**
     * Returns the shapes of the network's inputs, those of any batch.
     *
     * @param arguments the arguments of the model
     * @return the shapes
     */
    protected abstract Shape[] getInputShapes(Map<String, ?> arguments);

    /**
     * {@inheritDoc}
     *
     * @throws IOException if a file is missing, not whole, or of another network, or the folder's
     *     properties let DJL load another file
     * @throws IllegalArgumentException if there are fewer devices than the degree says, or the
     *     network cannot be cut over so many ranks
     * @throws IllegalStateException if {@link #newNetwork} makes none, or one with values
     */
    @Override
    public final Block newBlock(Model model, Path modelPath, Map<String, ?> arguments)
            throws IOException {
        Path file = modelPath.resolve(ModelFolder.WEIGHTS);
        if (!Files.isRegularFile(file)) {
            throw new FileNotFoundException(
                    "There is no "
                            + ModelFolder.WEIGHTS
                            + " in "
                            + modelPath
                            + ": write the folder with ModelFolder, or give the right one");
        }
        ModelFolder.checkNoOtherWeights(modelPath);
        Block network = newNetwork(modelPath, arguments);
        if (network == null) {
            throw new IllegalStateException(
                    "newNetwork of "
                            + getClass().getName()
                            + " returned null: it is to return the network of the weights in "
                            + file);
        }
        StoredNetwork stored = StoredNetwork.of(network, file, getInputShapes(arguments));
        Device device = model.getNDManager().getDevice();
        int gpus = model.getNDManager().getEngine().getGpuCount();
        int ranks =
                TensorParallelDegree.of(arguments, modelPath)
                        .resolve(device, gpus, new CutLimit(stored));
        logger.debug("{} on {}, {} ranks", model.getName(), device, ranks);
        if (ranks == 1) {
            stored.loadWhole(model.getNDManager());
            return network;
        }
        String engine = model.getNDManager().getEngine().getEngineName();
        RankedNetwork ranked = RankedNetwork.start(stored, model.getName(), device, engine, ranks);
        ClosedWithModel.add(model, ranked);
        return ranked;
    }
}
