package io.djltp.classes;

import ai.djl.nn.Block;

import io.djltp.internal.Errors;
import io.djltp.internal.optimizer.HeadRates;

import java.io.IOException;
import java.nio.file.Path;
import java.util.function.Function;

/**
 * The layers of a {@link ClassModel} below its head, instead of those that it has by itself: any
 * network of DJL, such as a pretrained encoder.
 *
 * <pre>{@code
 * public final class OwnBody implements ClassBody {
 *     public Block newBlock() {
 *         return new SequentialBlock().add(Linear.builder().setUnits(32).build()).add(Activation::tanh);
 *     }
 * }
 * ClassModel model = ClassModel.builder(data).optBody(new OwnBody()).build();
 * }</pre>
 *
 * <p>The class has a public constructor without parameters, by which {@link ClassModel#load} makes
 * the body of a saved model; its name is in the model's folder. The weights of the block are saved
 * with the model.
 *
 * <p>A body of texts also says how a text becomes ids, by {@link #apply}; give it to {@link
 * ClassData.Builder#optTextFeatures}.
 */
public interface ClassBody extends Function<String, int[]>, AutoCloseable {

    /**
     * Returns the network of a model.
     *
     * @return a block whose inputs are those of {@link ClassData}, and whose output are features
     *     [batch, features]
     * @throws IOException if weights cannot be read
     */
    Block newBlock() throws IOException;

    /**
     * Returns the ids of a text.
     *
     * @param text the text
     * @return the ids, 1 or more each; in a batch, 0 fills up
     * @throws IllegalArgumentException if the text has none, or the body takes no texts
     */
    @Override
    default int[] apply(String text) {
        throw Errors.argument("%s takes no texts", getClass().getName());
    }

    /**
     * Returns by what {@link ClassModel#newOptimizer} multiplies the learning rate for the weights
     * of the body.
     *
     * @return the share of the rate of the head; by default a third, for a body without pretrained
     *     weights
     */
    default float getRateShare() {
        return HeadRates.TABLE_SHARE;
    }

    /**
     * Writes what {@link #load} reads. Default: nothing.
     *
     * @param folder the folder of the model, whose other files have names of their own
     * @throws IOException if it cannot be written
     */
    default void save(Path folder) throws IOException {}

    /**
     * Reads what {@link #save} wrote, once, before other calls. Default: nothing.
     *
     * @param folder the folder of the model
     * @throws IOException if it cannot be read
     */
    default void load(Path folder) throws IOException {}

    /** Frees what the body holds. The model calls it when it is closed. Default: nothing. */
    @Override
    default void close() {}
}
