package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;

import io.djltp.zoo.ModelFolder;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** What no file can have is refused with its value. */
public class ExportOptionsTest {

    @DataProvider
    public Object[][] refused() {
        return new Object[][] {
            {
                (Assert.ThrowingRunnable) () -> WeightExport.builder().optDataType(DataType.INT32),
                "Weights are written as floating point numbers, not int32"
            },
            {
                (Assert.ThrowingRunnable) () -> ModelFolder.builder().optDataType(DataType.INT64),
                "Weights are written as floating point numbers, not int64"
            },
            {
                (Assert.ThrowingRunnable) () -> WeightExport.builder().optDataType(null),
                "Weights are written as floating point numbers, not null"
            },
            {
                (Assert.ThrowingRunnable) () -> ModelFolder.builder().optDataType(null),
                "Weights are written as floating point numbers, not null"
            },
            {
                (Assert.ThrowingRunnable) () -> WeightExport.builder().optFileBytes(0),
                "The bytes of a file must be 1 or more, not 0"
            },
            {
                (Assert.ThrowingRunnable) () -> OnnxExport.builder().optExternalAbove(1L << 31),
                "An ONNX file has less than 2 GiB, 2147483648 bytes: weights of 2147483648 bytes do"
                        + " not fit into it"
            },
        };
    }

    @Test(dataProvider = "refused")
    public void theErrorNamesTheValue(Assert.ThrowingRunnable call, String message) {
        Exception e = Assert.expectThrows(IllegalArgumentException.class, call);
        Assert.assertEquals(e.getMessage(), message);
    }
}
