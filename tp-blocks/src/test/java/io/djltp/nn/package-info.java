/** Contains the tests of the tensor-parallel blocks. */
package io.djltp.nn;
