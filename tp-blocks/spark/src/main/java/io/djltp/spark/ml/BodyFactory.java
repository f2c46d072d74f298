package io.djltp.spark.ml;

import ai.djl.nn.Block;

import java.util.Map;

/**
 * Makes the part of a network below its head: any blocks of DJL. It is found by the name of its
 * class on every executor, and needs a public constructor without parameters.
 */
public interface BodyFactory {

    /**
     * Makes the body, without values.
     *
     * @param arguments what {@link ParallelClassifier#setBodyArguments} was given
     * @return a block from [rows, width of the features column], float32, or int32 where the column
     *     is an array of integers, to [rows, features]; with {@link
     *     ParallelClassifier#setEmbeddingUnits}, from [rows, embeddingUnits]
     */
    Block newBody(Map<String, String> arguments);
}
