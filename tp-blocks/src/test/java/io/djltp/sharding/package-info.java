/** Contains the tests of how tensors are cut. */
package io.djltp.sharding;
