/** Contains the tests of io.djltp.nn.norm. */
package io.djltp.nn.norm;
