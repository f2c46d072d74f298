package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import org.testng.Assert;
import org.testng.annotations.Test;

/** What an input of a file of ONNX has to be. */
public class OnnxInputTest {

    @Test
    public void aNumberIsNoBatch() {
        String message =
                Assert.expectThrows(
                                IllegalArgumentException.class,
                                () ->
                                        OnnxExport.builder()
                                                .setInput("x", DataType.FLOAT32, new Shape()))
                        .getMessage();
        Assert.assertTrue(message.contains("input x needs the shape of a batch"), message);
    }
}
