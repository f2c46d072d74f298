/** Contains the tests of the binding to libtorch and of the autograd mappings. */
package io.djltp.bridge;
