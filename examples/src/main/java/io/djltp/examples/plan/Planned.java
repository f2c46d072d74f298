package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;

/**
 * A network that is planned.
 *
 * @param block the network, without values
 * @param inputs the shapes of the inputs of a batch
 * @param loss the loss, or {@code null} of one that is not trained
 */
record Planned(Block block, Shape[] inputs, Loss loss) {}
