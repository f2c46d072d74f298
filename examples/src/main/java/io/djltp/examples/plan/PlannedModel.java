package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;

import java.util.List;

/** A model that {@code tp plan} knows: a new one is a class, and a line in {@link #ALL}. */
interface PlannedModel {

    /** All of them. */
    List<PlannedModel> ALL = List.of(new LemmatiserModel(), new ResnetModel());

    /** Returns the name on the command line. */
    String getName();

    /** Returns what it is, in one line. */
    String getDescription();

    /**
     * Returns the network, without values.
     *
     * @param classes the number of classes, or {@code null} for the usual one
     */
    Block create(Integer classes);

    /** Returns the shapes of the inputs of a batch. */
    Shape[] inputs(int batch);

    /** Returns the loss. */
    Loss loss();
}
