package io.djltp.zoo.lemma;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.initializer.NormalInitializer;

import io.djltp.nn.EmbeddingBag;

/**
 * The network of the lemmatiser: the embeddings of the n-grams of a word are added up, the sum is
 * scaled to a fixed length, and a head turns it into one logit per lemma.
 *
 * <p>The head is any block from (batch, dim) to (batch, classes), such as {@link
 * ai.djl.nn.core.Linear}.
 */
public final class LemmaNetwork {

    /** The length of every feature vector. */
    public static final float FEATURE_LENGTH = 16f;

    /** The standard deviation of a head's first weights: small, so that all lemmas start alike. */
    public static final float HEAD_SIGMA = 0.01f;

    /** What is added to the square of a length before its root is taken. */
    public static final float EPSILON = 1e-6f;

    /** The name of the block that scales the sums. */
    public static final String NORMALIZE = "normalize";

    private LemmaNetwork() {}

    /**
     * Creates the part below the head.
     *
     * <ul>
     *   <li>input: int32 (batch, n-grams), as {@link CharNGrams} makes them
     *   <li>output: float32 (batch, dim), each row of length {@link #FEATURE_LENGTH}
     * </ul>
     *
     * @param rows the number of rows of the embedding table
     * @param dim the number of features
     * @return the block
     */
    public static SequentialBlock body(int rows, int dim) {
        EmbeddingBag embedding = new EmbeddingBag(rows, dim);
        embedding.setInitializer(new NormalInitializer(0.25f), Parameter.Type.WEIGHT);
        return new SequentialBlock()
                .add(embedding)
                .add(new LambdaBlock(LemmaNetwork::normalize, NORMALIZE));
    }

    /**
     * Sets how the weights of a head start.
     *
     * @param head the head
     */
    public static void initializeHead(Block head) {
        head.setInitializer(new NormalInitializer(HEAD_SIGMA), Parameter.Type.WEIGHT);
    }

    /**
     * Puts a head on the body.
     *
     * @param rows the number of rows of the embedding table
     * @param dim the number of features
     * @param head the head
     * @return the network
     */
    public static SequentialBlock create(int rows, int dim, Block head) {
        return body(rows, dim).add(head);
    }

    private static NDList normalize(NDList inputs) {
        NDArray features = inputs.singletonOrThrow();
        NDArray length = features.square().sum(new int[] {1}, true).add(EPSILON).sqrt();
        // not mul(number): DJL keeps a number in Java memory that may be gone when the gradient
        // needs it
        NDArray scale = length.zerosLike().add(FEATURE_LENGTH);
        return new NDList(features.div(length).mul(scale));
    }
}
