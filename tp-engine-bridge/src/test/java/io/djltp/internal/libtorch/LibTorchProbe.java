package io.djltp.internal.libtorch;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.LibUtils;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.Loader;

/** Loads libtorch in a fresh JVM in one of several ways, and prints what is loaded then. */
final class LibTorchProbe {

    private LibTorchProbe() {}

    public static void main(String[] args) {
        switch (args[0]) {
            case "javacpp-first" -> {
                System.out.println("platform=" + Loader.getPlatform());
                try (BytePointer pointer = new BytePointer(8)) { // loads JavaCPP's own library
                    pointer.put((byte) 1);
                }
            }
            case "threads-first" -> Autograd.setThreads(1);
            case "mode-first" -> Autograd.gradMode(false).close();
            case "twice" -> {
                try {
                    LibTorch.load();
                } catch (EngineException e) {
                    System.out.println("first=" + e);
                }
            }
            default -> {}
        }
        LibTorch.load();
        System.out.println("libraries=" + LibTorch.loadedLibraries());
        System.out.println("path=" + LibUtils.getLibtorchPath());
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray array = manager.ones(new Shape(2, 3));
            TensorView.of(array).tensor().mul_(TensorView.of(array.add(1)).tensor());
            System.out.println("sum=" + array.sum().getFloat());
        }
    }
}
