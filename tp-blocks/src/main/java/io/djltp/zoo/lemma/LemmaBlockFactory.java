package io.djltp.zoo.lemma;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.translate.ArgumentsUtil;

import io.djltp.nn.ClassificationHead;
import io.djltp.zoo.ParallelBlockFactory;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;

/**
 * Makes the network of a lemmatiser: {@link LemmaNetwork} with a {@link ClassificationHead}, whose
 * classes are cut over the ranks.
 *
 * <p>Arguments: {@code rows}, those of the embedding table, {@code limit}, the most n-grams of a
 * word, and {@code dim}, the features of a word. There are as many classes as lines in {@link
 * LemmaLabels#FILE}.
 */
public final class LemmaBlockFactory extends ParallelBlockFactory {

    private static final long serialVersionUID = 1L;

    /** Creates a factory. */
    public LemmaBlockFactory() {}

    /** {@inheritDoc} */
    @Override
    protected Block newNetwork(Path folder, Map<String, ?> arguments) throws IOException {
        return LemmaNetwork.create(
                positive(arguments, "rows"),
                positive(arguments, "dim"),
                ClassificationHead.builder().setUnits(LemmaLabels.read(folder).size()).build());
    }

    /** {@inheritDoc} */
    @Override
    protected Shape[] getInputShapes(Map<String, ?> arguments) {
        return new Shape[] {new Shape(1, positive(arguments, "limit"))};
    }

    /** Returns the n-grams of words that the network takes. */
    static CharNGrams nGrams(Map<String, ?> arguments) {
        return new CharNGrams(positive(arguments, "rows"), positive(arguments, "limit"));
    }

    private static int positive(Map<String, ?> arguments, String name) {
        int value = 0;
        try {
            value = ArgumentsUtil.intValue(arguments, name, 0);
        } catch (NumberFormatException e) {
            // refused below
        }
        if (value < 1) {
            throw new IllegalArgumentException(
                    "A lemmatiser needs the argument "
                            + name
                            + ", 1 or more, as its model folder has it, not "
                            + arguments.get(name));
        }
        return value;
    }
}
