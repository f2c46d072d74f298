package io.djltp.examples.lemma;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;

import org.testng.Assert;

import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.file.Path;
import java.util.Map;

/** Compares what ONNX Runtime computes of a file with what DJL computes. */
final class OnnxFiles {

    private OnnxFiles() {}

    static void assertComputes(
            Path file, String input, NDArray values, String output, NDArray expected)
            throws OrtException {
        OrtEnvironment environment = OrtEnvironment.getEnvironment();
        try (OrtSession session = environment.createSession(file.toString());
                OnnxTensor tensor = tensor(environment, values);
                OrtSession.Result result = session.run(Map.of(input, tensor))) {
            OnnxTensor actual = (OnnxTensor) result.get(output).orElseThrow();
            Assert.assertEquals(actual.getInfo().getShape(), expected.getShape().getShape());
            FloatBuffer numbers = actual.getFloatBuffer();
            float[] all = expected.toFloatArray();
            double largest = expected.abs().max().getFloat();
            for (int i = 0; i < all.length; i++) {
                double most = 1e-5 * Math.min(largest, 1 + Math.abs(all[i]));
                Assert.assertEquals(numbers.get(i), all[i], most, "number " + i);
            }
        }
    }

    private static OnnxTensor tensor(OrtEnvironment environment, NDArray values)
            throws OrtException {
        long[] shape = values.getShape().getShape();
        if (values.getDataType() == DataType.FLOAT32) {
            FloatBuffer numbers = FloatBuffer.wrap(values.toFloatArray());
            return OnnxTensor.createTensor(environment, numbers, shape);
        }
        return values.getDataType() == DataType.INT32
                ? OnnxTensor.createTensor(environment, IntBuffer.wrap(values.toIntArray()), shape)
                : OnnxTensor.createTensor(
                        environment, LongBuffer.wrap(values.toLongArray()), shape);
    }
}
