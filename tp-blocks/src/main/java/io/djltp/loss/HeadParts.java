package io.djltp.loss;

import ai.djl.nn.Parameter;

/**
 * Which parameters of a head something is about, such as those that are trained.
 *
 * @param weight whether it is about the weight
 * @param bias whether it is about the bias
 */
record HeadParts(boolean weight, boolean bias) {

    static final HeadParts NONE = new HeadParts(false, false);

    /**
     * Returns those that are trained now.
     *
     * @param weight the weight
     * @param bias the bias, or {@code null}
     */
    static HeadParts trained(Parameter weight, Parameter bias) {
        return new HeadParts(weight.requiresGradient(), bias != null && bias.requiresGradient());
    }

    HeadParts and(HeadParts others) {
        return new HeadParts(weight && others.weight, bias && others.bias);
    }

    HeadParts or(HeadParts others) {
        return new HeadParts(weight || others.weight, bias || others.bias);
    }

    HeadParts without(HeadParts others) {
        return new HeadParts(weight && !others.weight, bias && !others.bias);
    }

    boolean isEmpty() {
        return !weight && !bias;
    }
}
