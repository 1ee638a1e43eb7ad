import subprocess
import sys

from tinyexp.launch.ray_actor import carried_variables


def test_documented_variables_are_carried_and_those_of_one_machine_are_not(monkeypatch):
    for name in ("IMAGENET_HOME", "TINYEXP_X", "NCCL_DEBUG", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "1")
    found = carried_variables()
    assert {"IMAGENET_HOME", "TINYEXP_X", "NCCL_DEBUG", "OMP_NUM_THREADS"} <= found.keys()
    assert not {"CUDA_VISIBLE_DEVICES", "RAY_AUTH_TOKEN", "PATH", "HOME"} & found.keys()


def test_the_module_of_the_actor_imports_neither_torch_nor_ray():
    code = "import sys, tinyexp.launch.ray_actor, tinyexp.launch.ray_workers; print('torch' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
