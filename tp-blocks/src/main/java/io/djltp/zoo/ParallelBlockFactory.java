package io.djltp.zoo;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.BlockFactory;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.PretrainedWeights;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/**
 * Makes the network of a {@link ModelFolder} with its weights. DJL and DJL Serving find a factory
 * by the name of its class, {@code blockFactory} in {@code serving.properties}; it needs a public
 * constructor without parameters.
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
 * <p>Over how many ranks it is cut, {@code tensor_parallel_degree} says: a number, or {@code max},
 * which is all GPUs from the model's on, or on CPU one rank for each processor that the JVM has,
 * but no more than the model can be cut over. The name is that of DJL Serving. It is taken from the
 * argument of the model, {@code optArgument("tensor_parallel_degree", 2)}; without one from {@code
 * option.tensor_parallel_degree} in {@code serving.properties}; without that it is 1.
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
     * Makes the network. It gets the values of the folder.
     *
     * @param folder the folder of the model
     * @param arguments the arguments of the model, with those of {@code serving.properties}
     * @return the network
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
     *     network cannot be cut over so many ranks. The model is then closed, which DJL's loader
     *     leaves open
     */
    @Override
    public final Block newBlock(Model model, Path modelPath, Map<String, ?> arguments)
            throws IOException {
        try {
            return newBlockOf(model, modelPath, arguments);
        } catch (IOException | RuntimeException | Error e) {
            model.close();
            throw e;
        }
    }

    private Block newBlockOf(Model model, Path modelPath, Map<String, ?> arguments)
            throws IOException {
        Path file = modelPath.resolve(ModelFolder.WEIGHTS);
        if (!Files.isRegularFile(file)) {
            throw new FileNotFoundException(
                    "There is no %s in %s: write the folder with ModelFolder, or give the right one"
                            .formatted(ModelFolder.WEIGHTS, modelPath));
        }
        ModelFolder.checkNoOtherWeights(modelPath);
        Block network = newNetwork(modelPath, arguments);
        Shape[] inputs = getInputShapes(arguments);
        Device device = model.getNDManager().getDevice();
        Engine engine = model.getNDManager().getEngine();
        int ranks =
                TensorParallelDegree.resolve(
                        TensorParallelDegree.of(arguments, modelPath),
                        device,
                        engine.getGpuCount(),
                        network,
                        inputs);
        logger.debug("{} on {}, {} ranks", model.getName(), device, ranks);
        try (PretrainedWeights weights =
                PretrainedWeights.builder().setPath(file).setMapping(NameMapping.own()).build()) {
            if (ranks > 1) {
                RankedNetwork ranked =
                        RankedNetwork.start(
                                network, weights, inputs, model.getName(), device, ranks);
                // also where DJL forgets the model: it closes what its manager has
                model.getNDManager().attachInternal(NDManager.nextUid(), ranked);
                return ranked;
            }
            model.setBlock(network);
            weights.load(model, inputs);
            // as after DJL's load: a trainer records gradients, a predictor has no use for them
            network.getParameters().values().forEach(p -> p.getArray().setRequiresGradient(false));
            return network;
        } catch (MalformedModelException e) {
            throw new IOException(e.getMessage(), e);
        } catch (UncheckedIOException e) {
            throw e.getCause();
        }
    }
}
