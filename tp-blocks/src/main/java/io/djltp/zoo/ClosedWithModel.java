package io.djltp.zoo;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;

/** What ends with a model. DJL's models know nothing but arrays that they close. */
public final class ClosedWithModel {

    private ClosedWithModel() {}

    /**
     * Lets something be closed with a model, also where the model is forgotten and DJL closes it.
     *
     * @param model the model
     * @param resource what is closed; it does not hold the model
     */
    public static void add(Model model, AutoCloseable resource) {
        model.getNDManager().attachInternal(NDManager.nextUid(), resource);
    }
}
