package io.djltp.exchange;

/** Says with ONNX's operators what a block computes. */
@FunctionalInterface
public interface OnnxNodes {

    /**
     * Adds the operators.
     *
     * @param graph what they are added to
     * @param input the value that the block gets
     * @return the value that it returns
     */
    String add(OnnxGraph graph, String input);
}
